"""A Conan 2 package of rankloom, whose dependencies are the system's packages. In a checkout:

    conan create packaging/conan -s compiler.cppstd=20 -c tools.system.package_manager:mode=install -o 'rankloom/*:shared=False'

C++20 is not what `conan profile detect` sets, and Conan installs packages of the system only where it is told to.

A project that requires it finds rankloom::rankloom and rankloom::testing by find_package(rankloom), and `rankloom` by pkg-config.
"""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain
from conan.tools.system.package_manager import Apt

SOURCES = ("meson.build", "meson_options.txt", "LICENSE", "sim/*", "fake_store/*", "world/*", "collectives/*", "harness/*", "include/*",
           "packaging/*", "tools/*")


class Rankloom(ConanFile):
    name = "rankloom"
    description = "A distributed job inside one process, for tests"
    license = "Apache-2.0"
    settings = "os", "arch", "compiler", "build_type"
    package_type = "library"
    options = {"shared": [True, False]}  # noqa: RUF012 (Conan reads it so)
    default_options = {"shared": False}  # noqa: RUF012

    def set_version(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        with open(os.path.join(root, "meson.build"), encoding="utf-8") as file:
            self.version = re.search(r"version: '([^']+)'", file.read()).group(1)

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in SOURCES:
            copy(self, pattern, root, self.export_sources_folder)

    def layout(self):
        basic_layout(self, src_folder=".")

    def validate(self):
        check_min_cppstd(self, 20)

    def system_requirements(self):
        Apt(self).install(["libabsl-dev", "libboost-fiber-dev", "libboost-context-dev", "libtbb-dev", "libhwy-dev", "libgmock-dev",
                           "libgtest-dev", "meson", "ninja-build", "pkg-config"])

    def generate(self):
        toolchain = MesonToolchain(self)
        toolchain.project_options.update({"tests": False, "bench": False, "examples": False, "cuda": "disabled", "chakra": "disabled",
                                          "mpi": []})
        toolchain.generate()

    def build(self):
        meson = Meson(self)
        meson.configure()
        meson.build()

    def package(self):
        Meson(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # The package's own files for CMake and pkg-config, which name the system's packages.
        self.cpp_info.libs = ["rankloom-testing", "rankloom"]
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "rankloom")]
        self.runenv_info.prepend_path("PATH", os.path.join(self.package_folder, "bin"))
        self.buildenv_info.prepend_path("PKG_CONFIG_PATH", os.path.join(self.package_folder, "lib", "pkgconfig"))
