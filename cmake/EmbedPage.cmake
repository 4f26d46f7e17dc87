# A page with its style and script inside it, as a C++ string literal.
#   cmake -P EmbedPage.cmake OUT.inc PAGE.html PART.css PART.js ...
file(READ ${CMAKE_ARGV4} page)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE 5 ${last})
  file(READ ${CMAKE_ARGV${i}} content)
  get_filename_component(name ${CMAKE_ARGV${i}} NAME)
  string(REPLACE "<link rel=\"stylesheet\" href=\"${name}\">" "<style>\n${content}</style>" page "${page}")
  string(REPLACE "<script src=\"${name}\"></script>" "<script>\n${content}</script>" page "${page}")
endforeach()
# Compilers take literals of 64 KiB at most.
string(LENGTH "${page}" length)
set(literal "")
foreach(begin RANGE 0 ${length} 16000)
  string(SUBSTRING "${page}" ${begin} 16000 part)
  string(APPEND literal "R\"page(${part})page\"\n")
endforeach()
file(WRITE ${CMAKE_ARGV3} "${literal}")
