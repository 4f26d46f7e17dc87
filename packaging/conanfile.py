"""Conan 2: conan create packaging"""

import pathlib
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Multihead(ConanFile):
    name = "multihead"
    description = "Multi-head attention and Transformers on a CPU, trained and run"
    license = "Apache-2.0"
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False], "tools": [True, False]}
    default_options = {"shared": False, "tools": False}

    def set_version(self):
        text = (ROOT / "multihead" / "core" / "version.h").read_text()
        self.version = ".".join(re.findall(r"MULTIHEAD_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))

    def export_sources(self):
        files = "CHANGELOG.md", "CMakeLists.txt", "LICENSE", "THIRD_PARTY.md", "tools/command_page.py"
        for pattern in *files, "cmake/*", "cli/*", "multihead/*", "packaging/*", "plugins/*":
            copy(self, pattern, ROOT, self.export_sources_folder)

    def requirements(self):
        self.requires("highway/[>=1.0.3 <2]")
        self.requires("nlohmann_json/[>=3.11 <4]")
        self.requires("utf8proc/[>=2.8 <3]")
        if self.options.tools:
            self.requires("fmt/[>=9 <12]")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        dependencies = CMakeDeps(self)
        for package, file, target in ("highway", "HWY", "hwy::hwy"), ("utf8proc", "UTF8PROC", "utf8proc::utf8proc"):
            dependencies.set_property(package, "cmake_file_name", file)
            dependencies.set_property(package, "cmake_target_name", target)
        dependencies.generate()
        toolchain = CMakeToolchain(self)
        toolchain.variables["MULTIHEAD_BUILD_CLI"] = bool(self.options.tools)
        toolchain.variables["MULTIHEAD_BUILD_TESTS"] = False
        toolchain.variables["MULTIHEAD_BUILD_EXAMPLES"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.libs = ["multihead"]
        self.cpp_info.set_property("cmake_target_name", "multihead::multihead")
        self.cpp_info.system_libs = ["pthread", "dl", "m"]
        if not self.options.shared:  # the system's own packages (platform_requires) do not say what to link
            libraries = {"highway": "hwy", "utf8proc": "utf8proc"}
            self.cpp_info.system_libs += [
                library for package, library in libraries.items() if package not in self.dependencies.host
            ]
