# Installs the client library as a CMake package: headers below include/oscarkv, included by the
# same paths as here ("client/client.h").
include(CMakePackageConfigHelpers)

set(headers ${CMAKE_INSTALL_INCLUDEDIR}/oscarkv)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/oscarkv)
set(generated ${PROJECT_BINARY_DIR}/generated)

target_compile_features(oscarkv_client PUBLIC cxx_std_20)
foreach(target oscarkv_client oscarkv_proto)
  target_include_directories(${target} PUBLIC $<INSTALL_INTERFACE:${headers}>)
endforeach()

install(FILES client.h error_info.h retry.h session_writer.h streams.h tensors.h
        DESTINATION ${headers}/client)
install(FILES ${generated}/oscarkv/v1/kv_cache.pb.h ${generated}/oscarkv/v1/kv_cache.grpc.pb.h
        DESTINATION ${headers}/oscarkv/v1)
install(FILES ${generated}/google/rpc/status.pb.h ${generated}/google/rpc/error_details.pb.h
        DESTINATION ${headers}/google/rpc)
install(FILES ${PROJECT_SOURCE_DIR}/proto/oscarkv/v1/kv_cache.proto
        DESTINATION ${CMAKE_INSTALL_DATADIR}/oscarkv/proto/oscarkv/v1)

install(TARGETS oscarkv_client oscarkv_proto oscarkv_kernels_api EXPORT oscarkvTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT oscarkvTargets NAMESPACE oscarkv:: DESTINATION ${package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/oscarkvConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES oscarkvConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/oscarkvConfigVersion.cmake
        DESTINATION ${package})
