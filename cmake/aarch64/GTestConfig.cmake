# GoogleTest from source, which the distributions' packages bring along.
set(OSCARKV_GOOGLETEST_SOURCE_DIR /usr/src/googletest CACHE PATH "Source of GoogleTest")
add_subdirectory(${OSCARKV_GOOGLETEST_SOURCE_DIR} ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
