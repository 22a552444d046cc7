# Compiler settings shared by all targets, and oscarkv_library() to define one.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(OSCARKV_CCACHE ccache)
if(OSCARKV_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${OSCARKV_CCACHE})
endif()

find_package(Threads REQUIRED)

add_library(oscarkv_options INTERFACE)
target_include_directories(oscarkv_options INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(oscarkv_options INTERFACE Threads::Threads)
# Both backends round alike only if no product and sum are fused behind our back.
target_compile_options(oscarkv_options INTERFACE -ffp-contract=off)
target_compile_options(oscarkv_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor)
if(OSCARKV_WARNINGS_AS_ERRORS)
  target_compile_options(oscarkv_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(oscarkv_options INTERFACE -Wthread-safety)
endif()
if(OSCARKV_SANITIZE)
  set(sanitize -fsanitize=${OSCARKV_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(oscarkv_options INTERFACE ${sanitize})
  target_link_options(oscarkv_options INTERFACE ${sanitize})
endif()

# oscarkv_library(NAME FILES...): static library oscarkv_NAME with the alias oscarkv::NAME.
function(oscarkv_library name)
  add_library(oscarkv_${name} STATIC ${ARGN})
  add_library(oscarkv::${name} ALIAS oscarkv_${name})
  set_target_properties(oscarkv_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(oscarkv_${name} PUBLIC $<BUILD_INTERFACE:oscarkv_options>)
endfunction()

# oscarkv_program(NAME FILES...): a program in bin/, installed.
function(oscarkv_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE oscarkv_options)
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()
