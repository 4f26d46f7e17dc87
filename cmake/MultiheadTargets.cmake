# A folder of multihead/ becomes an object library, a test program and (option) a benchmark program.
#   multihead_folder(ops LINK <third-party targets> DEPENDS <other folders>)
# Sources are found by suffix: x.cc, x_test.cc, x_bench.cc lie side by side.

set(MULTIHEAD_FOLDERS "" CACHE INTERNAL "")

# Floating-point contraction is off so that the bits depend on the source alone.
function(multihead_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off)
  if(MULTIHEAD_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(MULTIHEAD_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${MULTIHEAD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    if(MULTIHEAD_SANITIZE MATCHES "undefined")
      # These checks take half of the compile time. The address sanitizer reports null pointers and ends of objects too,
      # and alignment matters where bytes are read as numbers.
      target_compile_options(${target} PRIVATE -fno-sanitize=null,object-size,vptr)
      if(NOT target MATCHES "_(io|kernels)$")
        target_compile_options(${target} PRIVATE -fno-sanitize=alignment)
      endif()
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${MULTIHEAD_SANITIZE})
  endif()
endfunction()

# Precompiles headers that nearly every file of a kind of target includes: half of the time of an average file. The
# first target of a kind makes them, the others, which have the same flags, read them. Files still include what they
# use: CMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without, as clang-tidy and the projects of tests/install do.
#
# CMAKE_UNITY_BUILD=ON (presets that build from scratch; pip) moreover compiles 16 files as one, but for kernels, which
# take long each, and tests. Developers build without: one file that changes is one file to compile.
set(MULTIHEAD_STANDARD_HEADERS <algorithm> <array> <atomic> <cmath> <cstdint> <cstring> <filesystem> <functional>
    <limits> <map> <memory> <mutex> <numeric> <optional> <set> <sstream> <span> <string> <string_view> <utility>
    <variant> <vector>)
function(multihead_precompile target kind)
  if(NOT PROJECT_IS_TOP_LEVEL)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
  if(kind MATCHES "kernels|tests")
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endif()
  if(kind MATCHES "tests")
    set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS OFF)  # half of their compile time
  elseif(CMAKE_DISABLE_PRECOMPILE_HEADERS)
    return()
  endif()
  get_property(first GLOBAL PROPERTY MULTIHEAD_PRECOMPILED_${kind})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    set_property(GLOBAL PROPERTY MULTIHEAD_PRECOMPILED_${kind} ${target})
    target_precompile_headers(${target} PRIVATE ${MULTIHEAD_STANDARD_HEADERS} ${ARGN})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # or ccache cannot tell what it was built from
    if(kind MATCHES "^(library|above|kernels)$")
      # GCC 12 forgets that intrinsics and strings come from system headers and repeats its false alarms about them.
      # tests/install compiles the library without precompiled headers and with these warnings.
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-maybe-uninitialized -Wno-restrict
                                               -Wno-stringop-overflow -Wno-uninitialized)
    endif()
  endif()
endfunction()

function(multihead_folder name)
  cmake_parse_arguments(ARG "" "" "LINK;DEPENDS" ${ARGN})
  set(dir ${PROJECT_SOURCE_DIR}/multihead/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  set(MULTIHEAD_${name}_DEPENDS ${ARG_DEPENDS} CACHE INTERNAL "")
  set(MULTIHEAD_${name}_LINK ${ARG_LINK} CACHE INTERNAL "")
  set(MULTIHEAD_${name}_TESTS ${tests} CACHE INTERNAL "")
  set(MULTIHEAD_${name}_BENCHES ${benches} CACHE INTERNAL "")
  if(NOT sources)
    return()
  endif()

  add_library(multihead_${name} OBJECT ${sources})
  multihead_compile_options(multihead_${name})
  target_include_directories(multihead_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(multihead_${name} PRIVATE ${ARG_LINK})
  set_target_properties(multihead_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(name MATCHES "^(distributed|embed|look|models|train)$")
    # These call the loops that take time and hold few of their own, and half of their compile time was optimisation.
    target_compile_options(multihead_${name} PRIVATE $<$<CONFIG:Release>:-Og>)
    multihead_precompile(multihead_${name} above)
  elseif(NOT name STREQUAL "kernels")
    multihead_precompile(multihead_${name} library)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    multihead_precompile(multihead_${name} kernels <immintrin.h>)
  else()
    multihead_precompile(multihead_${name} kernels)  # flags of their own: see CMakeLists.txt for ARM
  endif()
  set(MULTIHEAD_FOLDERS ${MULTIHEAD_FOLDERS} ${name} CACHE INTERNAL "")
endfunction()

# Links a program with a folder and the folders below it only: an upward call fails at the link, and a folder
# can be built and tested while one above it is broken.
function(multihead_link_folder target name)
  set(pending ${name})
  set(done "")
  while(pending)
    list(POP_FRONT pending next)
    if(NOT next IN_LIST done)
      list(APPEND done ${next})
      list(APPEND pending ${MULTIHEAD_${next}_DEPENDS})
    endif()
  endwhile()
  foreach(folder ${done})
    if(TARGET multihead_${folder})
      target_link_libraries(${target} PRIVATE multihead_${folder})  # an object library: adds its objects
    endif()
    target_link_libraries(${target} PRIVATE ${MULTIHEAD_${folder}_LINK})
  endforeach()
endfunction()

# Defines MULTIHEAD_GIT_HASH for one source, as of the time of configuring; empty without git.
function(multihead_git_hash source)
  find_program(MULTIHEAD_GIT git)
  mark_as_advanced(MULTIHEAD_GIT)
  set(hash "")
  if(MULTIHEAD_GIT AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
    execute_process(COMMAND ${MULTIHEAD_GIT} rev-parse --short=12 HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                    OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS MULTIHEAD_GIT_HASH="${hash}"
                              SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# Slow tests are named *Slow* and carry the label "slow"; everything else is the fast suite. Tests are listed
# when ctest starts, not when the program is linked: building stays quick and needs no run.
function(multihead_test target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  multihead_compile_options(${target})
  # Tests are not optimised, which halves their compile time, but for the kernels', which hold the loops they compare
  # with. They are not instrumented either: what the sanitizers check is the library, and an object of a test serves
  # builds with and without them (see MULTIHEAD_TEST_OBJECTS).
  set(kind tests)
  if(target STREQUAL "kernels_test")
    set(kind kernels_tests)
  else()
    target_compile_options(${target} PRIVATE -O0)
  endif()
  if(MULTIHEAD_SANITIZE MATCHES "address")
    target_compile_options(${target} PRIVATE -fno-sanitize=all)
  endif()
  target_link_libraries(${target} PRIVATE GTest::gtest GTest::gmock GTest::gtest_main)
  get_target_property(sources ${target} SOURCES)
  if(sources)
    multihead_precompile(${target} ${kind} <gtest/gtest.h> <gmock/gmock.h>)
  endif()
  target_compile_definitions(${target} PRIVATE MULTIHEAD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set(discovery DISCOVERY_TIMEOUT 60 DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES)
  gtest_discover_tests(${target} TEST_FILTER -*Slow* ${discovery} PROPERTIES LABELS fast TIMEOUT 300)
  gtest_discover_tests(${target} TEST_FILTER *Slow* TEST_SUFFIX .slow ${discovery}
                       PROPERTIES LABELS slow TIMEOUT 1800)
endfunction()

function(multihead_library)
  set(objects "")
  set(links "")
  foreach(name ${MULTIHEAD_FOLDERS})
    list(APPEND objects $<TARGET_OBJECTS:multihead_${name}>)
    list(APPEND links ${MULTIHEAD_${name}_LINK})
  endforeach()
  list(REMOVE_DUPLICATES links)
  add_library(multihead ${objects})
  add_library(multihead::multihead ALIAS multihead)
  target_compile_features(multihead PUBLIC cxx_std_20)
  target_include_directories(multihead PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(multihead PRIVATE ${links})
  if(MULTIHEAD_SANITIZE)
    target_link_options(multihead PUBLIC -fsanitize=${MULTIHEAD_SANITIZE})
  endif()
  set_target_properties(multihead PROPERTIES VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LINKER_LANGUAGE CXX)

  # Tests see multihead/testing; the library never does.
  if(MULTIHEAD_BUILD_TESTS)
    file(GLOB testing CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/multihead/testing/*.cc)
    set(testing_tests ${testing})
    list(FILTER testing EXCLUDE REGEX "_test\\.cc$")
    list(FILTER testing_tests INCLUDE REGEX "_test\\.cc$")
    add_library(multihead_testing INTERFACE)
    if(testing)
      add_library(multihead_testing_objects STATIC ${testing})
      multihead_compile_options(multihead_testing_objects)
      target_include_directories(multihead_testing_objects PRIVATE ${PROJECT_SOURCE_DIR})
      target_link_libraries(multihead_testing INTERFACE multihead_testing_objects)
    endif()
    set(MULTIHEAD_testing_TESTS ${testing_tests} CACHE INTERNAL "")
    set(MULTIHEAD_testing_DEPENDS ops CACHE INTERNAL "")
    set(MULTIHEAD_testing_LINK "" CACHE INTERNAL "")
    foreach(name ${MULTIHEAD_FOLDERS} testing)
      if(MULTIHEAD_${name}_TESTS)
        if(MULTIHEAD_TEST_OBJECTS)
          list(TRANSFORM MULTIHEAD_${name}_TESTS REPLACE "^${PROJECT_SOURCE_DIR}/(.*)$"
               "${MULTIHEAD_TEST_OBJECTS}/CMakeFiles/${name}_test.dir/\\1.o" OUTPUT_VARIABLE objects)
          add_executable(${name}_test)
          target_link_libraries(${name}_test PRIVATE ${objects})
        else()
          add_executable(${name}_test ${MULTIHEAD_${name}_TESTS})
        endif()
        target_link_libraries(${name}_test PRIVATE multihead_testing)
        multihead_link_folder(${name}_test ${name})
        multihead_test(${name}_test)
      endif()
    endforeach()
  endif()
  if(MULTIHEAD_BUILD_BENCH)
    foreach(name ${MULTIHEAD_FOLDERS})
      if(MULTIHEAD_${name}_BENCHES)
        add_executable(${name}_bench ${MULTIHEAD_${name}_BENCHES})
        multihead_compile_options(${name}_bench)
        target_include_directories(${name}_bench PRIVATE ${PROJECT_SOURCE_DIR})
        multihead_link_folder(${name}_bench ${name})
        target_link_libraries(${name}_bench PRIVATE benchmark::benchmark benchmark::benchmark_main)
      endif()
    endforeach()
  endif()
  if(MULTIHEAD_INSTALL)
    include(MultiheadInstall)
  endif()
endfunction()
