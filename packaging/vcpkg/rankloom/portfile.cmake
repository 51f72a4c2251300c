# A port of vcpkg, of the checkout that it stands in:
#     vcpkg install rankloom --overlay-ports=packaging/vcpkg
# Gives rankloom::rankloom and rankloom::testing by find_package(rankloom), and the same by pkg-config.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)

# One build serves both kinds of a triplet: that of a debug build would only be slower.
set(VCPKG_BUILD_TYPE release)
# Meson finds Boost by these.
set(ENV{BOOST_INCLUDEDIR} "${CURRENT_INSTALLED_DIR}/include")
set(ENV{BOOST_LIBRARYDIR} "${CURRENT_INSTALLED_DIR}/lib")
vcpkg_configure_meson(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -Dtests=false
    -Dbench=false
    -Dexamples=false
    -Dcuda=disabled
    -Dchakra=disabled
    -Dmpi=[])
vcpkg_install_meson()
vcpkg_fixup_pkgconfig()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/rankloom)

# The command, a script of Python.
file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/tools/${PORT}")
file(RENAME "${CURRENT_PACKAGES_DIR}/bin/rankloom" "${CURRENT_PACKAGES_DIR}/tools/${PORT}/rankloom")
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/bin")

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
