#!/usr/bin/env bash
# The pictures of docs/tutorials/look-inside.md, taken by a headless Chromium.
#   tools/screenshots.sh MULTIHEAD MODEL TRANSLATOR
# MULTIHEAD is the program, MODEL what scripts/demo.sh trains, TRANSLATOR what docs/translation.md does.
set -euo pipefail
multihead=$(realpath "$1") model=$(realpath "$2") translator=$(realpath "$3")
images=$(realpath "$(dirname "$0")/../docs/tutorials/images")
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
work=$(mktemp -d)
trap 'rm -rf "$work"; [[ -z ${lab:-} ]] || kill -INT "$lab"' EXIT
cd "$work"

shoot() { # NAME ADDRESS WIDTH,HEIGHT
  HOME=$work/profile "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --window-size="$3" \
    --virtual-time-budget=5000 --user-data-dir="$work/profile" --screenshot="$images/$1" "$2" 2>browser.txt ||
    { cat browser.txt >&2 && exit 1; }
  echo "$images/$1"
}

"$multihead" attend "$model" --text "It is a truth universally acknowledged" --out page.html
shoot attend-dark.png "file://$work/page.html#l=2&h=1&q=8&theme=dark" 1300,1150
shoot attend-phone.png "file://$work/page.html#l=2&h=1&q=8&more=0,3" 390,1900
"$multihead" attend "$model" --text "She was very happy that day" --beside "He was very unhappy that day" --out two.html
shoot attend-two.png "file://$work/two.html#l=2&h=0&q=3&theme=light" 1920,1100
"$multihead" attend "$translator" --source "In the beginning God created the heaven and the earth." --out translation.html
shoot attend-translation.png "file://$work/translation.html#l=1&h=mean&theme=light" 1300,900
"$multihead" lab "$model" --text "It was a fine day" --json >address.txt &
lab=$!
until [[ -s address.txt ]]; do sleep 0.1; done
shoot lab.png "$(grep -oE 'http://[^"]*' address.txt)#l=1&h=0&off=0.1&cut=1.0.3.1&theme=light" 1500,1000
