# A Debian package: cpack --config build/<preset>/CPackConfig.cmake. Program, library, headers, and what the program
# itself says of its flags: manual pages and shell completion.
if(TARGET multihead_cli AND NOT CMAKE_CROSSCOMPILING)
  find_program(MULTIHEAD_PYTHON3 python3)
  mark_as_advanced(MULTIHEAD_PYTHON3)
  if(MULTIHEAD_PYTHON3)
    install(CODE "
      set(PROGRAM $<TARGET_FILE:multihead_cli>)
      set(PYTHON ${MULTIHEAD_PYTHON3})
      set(SHARE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
      include(${PROJECT_SOURCE_DIR}/packaging/pages.cmake)")
  endif()
endif()

set(CPACK_PACKAGE_NAME multihead)
set(CPACK_PACKAGE_CONTACT "The multihead developers <multihead@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# What needs MPI is a package of its own, so that the program alone brings no MPI.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME multihead)
# What programs that link the static library build with.
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_SUGGESTS "libhwy-dev, libutf8proc-dev, nlohmann-json3-dev")
set(CPACK_DEBIAN_MPI_PACKAGE_NAME multihead-mpi)
set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "multihead (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_UNSPECIFIED_DESCRIPTION "The command line trains, runs and serves language models, encoders and
translators; the C++ library, its headers and its C interface are for one's
own programs. Results do not depend on the number of threads.")
set(CPACK_COMPONENT_MPI_DESCRIPTION "What the program loads to train on several machines by MPI, and what alone of
multihead needs an MPI library. A program that is started by mpirun or srun
takes the module that belongs to its launcher.")
# What Debian's policy wants of every package.
string(TIMESTAMP release_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(${PROJECT_SOURCE_DIR}/packaging/changelog.in ${PROJECT_BINARY_DIR}/changelog @ONLY)
file(ARCHIVE_CREATE OUTPUT ${PROJECT_BINARY_DIR}/changelog.gz PATHS ${PROJECT_BINARY_DIR}/changelog
     FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
set(policy_files ${PROJECT_SOURCE_DIR}/packaging/copyright ${PROJECT_BINARY_DIR}/changelog.gz)
install(FILES ${policy_files} ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET multihead_openmpi OR TARGET multihead_mpich)
  install(FILES ${policy_files} DESTINATION ${CMAKE_INSTALL_DOCDIR}-mpi COMPONENT mpi)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
include(CPack)
