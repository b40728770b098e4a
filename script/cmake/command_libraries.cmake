# SPDX-License-Identifier: Apache-2.0
# The libraries of the command as imported targets: PkgConfig::JANSSON, PkgConfig::PCRE2 and
# PkgConfig::UTF8PROC, from GUMBEL_DEPS, or where that is empty by pkg-config.
if(NOT GUMBEL_DEPS)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.11)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
  return()
endif()
foreach(library "JANSSON jansson" "PCRE2 pcre2-8" "UTF8PROC utf8proc")
  string(REPLACE " " ";" library "${library}")
  list(GET library 0 target)
  list(GET library 1 name)
  get_filename_component(archive ${GUMBEL_DEPS}/lib/lib${name}.a ABSOLUTE
    BASE_DIR ${PROJECT_SOURCE_DIR})
  get_filename_component(headers ${GUMBEL_DEPS}/include ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
  if(NOT EXISTS ${archive})
    message(FATAL_ERROR
      "GUMBEL_DEPS: there is no ${archive}; `script/fetch-deps ${GUMBEL_DEPS}` makes it")
  endif()
  add_library(PkgConfig::${target} STATIC IMPORTED)
  set_target_properties(PkgConfig::${target} PROPERTIES
    IMPORTED_LOCATION ${archive} INTERFACE_INCLUDE_DIRECTORIES ${headers})
endforeach()
