#!/usr/bin/env bash
# The documentation as a site that works offline: build/site/index.html.
#   scripts/docs.sh    guide, lessons with their stored outputs, Python reference (MkDocs, from PyPI) and C++ reference (Doxygen)
# Where the program has been built, docs/commands.md is compared with its help; docs/variants.md with the gallery.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=build/docs-env
if [[ ! -x $environment/bin/mkdocs ]]; then
  python3 -m venv --system-site-packages "$environment"
  "$environment/bin/pip" install --quiet mkdocs mkdocs-material mkdocs-jupyter latex2mathml 'mkdocstrings[python]' black
fi
if compgen -G 'build/*/multihead' >/dev/null; then tools/command_page.py --check; fi
tools/variants_page.py --check
"$environment/bin/mkdocs" build --strict --quiet

if command -v doxygen >/dev/null; then
  rm -rf build/doxygen
  mkdir -p build/doxygen
  doxygen docs/site/Doxyfile
  rm -rf build/site/cpp
  cp -r build/doxygen/html build/site/cpp
else
  echo "docs: the C++ reference is left out, since doxygen is not installed (apt-get install doxygen)" >&2
fi
echo "docs: build/site/index.html"
