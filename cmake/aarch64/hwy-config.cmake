# Highway without its library: its headers are the same for every architecture, and kernels of a single
# target link nothing. They are reached by a link, because beside them lie the host's other headers.
find_path(OSCARKV_HIGHWAY_INCLUDE_DIR hwy/highway.h REQUIRED NO_CMAKE_FIND_ROOT_PATH)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${OSCARKV_HIGHWAY_INCLUDE_DIR}/hwy ${PROJECT_BINARY_DIR}/include/hwy SYMBOLIC)
if(NOT TARGET hwy::hwy)
  add_library(hwy::hwy INTERFACE IMPORTED GLOBAL)
  target_include_directories(hwy::hwy INTERFACE ${PROJECT_BINARY_DIR}/include)
endif()
