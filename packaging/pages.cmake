# Writes PROGRAM's manual pages and shell completions below SHARE: included where they are installed.
execute_process(COMMAND ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/man_pages.py ${PROGRAM} ${SHARE}/man/man1
                COMMAND_ERROR_IS_FATAL ANY)
foreach(shell_file bash:bash-completion/completions/multihead zsh:zsh/vendor-completions/_multihead
                   fish:fish/vendor_completions.d/multihead.fish)
  string(REPLACE ":" ";" shell_file ${shell_file})
  list(GET shell_file 0 shell)
  list(GET shell_file 1 file)
  cmake_path(GET file PARENT_PATH folder)
  file(MAKE_DIRECTORY ${SHARE}/${folder})
  execute_process(COMMAND ${PROGRAM} completion ${shell} OUTPUT_FILE ${SHARE}/${file} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
