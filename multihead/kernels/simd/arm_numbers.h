// Instructions that neither Highway 1.0.3 nor the compilers' target knows, and that assemblers refuse where the target
// lacks them: given as numbers, made from those of their registers. The callers have asked the CPU.
#pragma once

#if defined(__aarch64__)
// The numbers of registers by their names.
#define MH_REGISTERS                                                                                 \
  ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t" \
  ".equ .Lmh_v\\n,\\n\n\t"                                                                           \
  ".endr\n\t"
// Operands 0, 1 and 2 are 128-bit registers: the result, also added to, and two factors.
#define MH_NUMBERED MH_REGISTERS ".inst .Lmh_%0 + (.Lmh_%1 << 5) + (.Lmh_%2 << 16) + "
#endif
