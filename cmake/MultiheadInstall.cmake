include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/multihead)

install(TARGETS multihead EXPORT multihead_targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# File by file: a directory would be installed with its empty folders.
file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/multihead/*.h)
list(FILTER headers EXCLUDE REGEX "-inl\\.h$|^multihead/testing/")
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/THIRD_PARTY.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

# CMake: find_package(multihead)
install(EXPORT multihead_targets NAMESPACE multihead:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/multiheadConfig.cmake.in
  ${PROJECT_BINARY_DIR}/multiheadConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/multiheadConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/multiheadConfig.cmake ${PROJECT_BINARY_DIR}/multiheadConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindUTF8PROC.cmake
        DESTINATION ${package_dir})

# pkg-config multihead; paths are relative to the .pc file, so the prefix may be moved.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
# What a static library needs is needed by whoever links it, also by those who do not say --static.
set(pc_needs "Requires: libhwy, libutf8proc")
set(pc_threads " -pthread")
if(BUILD_SHARED_LIBS)
  set(pc_needs "")
  set(pc_threads "")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/multihead.pc.in ${PROJECT_BINARY_DIR}/multihead.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/multihead.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
