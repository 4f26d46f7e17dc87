include(CMakePackageConfigHelpers)

install(TARGETS multihead EXPORT multihead_targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/multihead/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/multihead
        FILES_MATCHING PATTERN "*.h" PATTERN "testing" EXCLUDE PATTERN "*-inl.h" EXCLUDE)
install(EXPORT multihead_targets NAMESPACE multihead::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/multihead)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/multiheadConfig.cmake.in
  ${PROJECT_BINARY_DIR}/multiheadConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/multihead)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/multiheadConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/multiheadConfig.cmake ${PROJECT_BINARY_DIR}/multiheadConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindUTF8PROC.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/multihead)
