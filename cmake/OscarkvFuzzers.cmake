# oscarkv_fuzzer(NAME LIBRARY FILES...): a libFuzzer program in tests/, part of the target `fuzzers`.
# Without OSCARKV_FUZZERS it defines nothing.

if(OSCARKV_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "OSCARKV_FUZZERS needs clang; use the preset clang")
  endif()
  # Libraries report what they cover; only fuzz programs bring the engine, and with it main().
  target_compile_options(oscarkv_options INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(oscarkv_options INTERFACE -fsanitize=fuzzer-no-link)
  add_custom_target(fuzzers)
endif()

function(oscarkv_fuzzer name library)
  if(NOT OSCARKV_FUZZERS)
    return()
  endif()
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${library} oscarkv_options)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_dependencies(fuzzers ${name})
endfunction()
