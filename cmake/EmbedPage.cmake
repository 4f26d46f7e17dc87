# A page with its style and script inside it, as a C++ string literal.
#   cmake -P EmbedPage.cmake PAGE.html STYLE.css SCRIPT.js OUT.inc
file(READ ${CMAKE_ARGV3} page)
file(READ ${CMAKE_ARGV4} style)
file(READ ${CMAKE_ARGV5} script)
get_filename_component(style_name ${CMAKE_ARGV4} NAME)
get_filename_component(script_name ${CMAKE_ARGV5} NAME)
string(REPLACE "<link rel=\"stylesheet\" href=\"${style_name}\">" "<style>\n${style}</style>" page "${page}")
string(REPLACE "<script src=\"${script_name}\"></script>" "<script>\n${script}</script>" page "${page}")
file(WRITE ${CMAKE_ARGV6} "R\"page(${page})page\"\n")
