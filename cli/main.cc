#include "cli/program.h"

int main(int argc, char** argv) { return multihead::cli::program({argv + 1, argv + argc}); }
