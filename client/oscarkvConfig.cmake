# find_package(oscarkv) brings oscarkv::client, the C++ client library.
include(CMakeFindDependencyMacro)
find_dependency(absl)
find_dependency(Protobuf)
find_dependency(gRPC CONFIG)
include(${CMAKE_CURRENT_LIST_DIR}/oscarkvTargets.cmake)
