/* End of the code that target_begin.h starts. With GCC the target lasts to the end of the file. */
#if defined(__clang__)
#pragma clang attribute pop
#endif
