/* A program whose split is known: half of the work below `half`, three tenths below `third`, the rest below `fifth`. */

#include <stdlib.h>

__attribute__((noinline)) long leaf(long times) {
    volatile long sum = 0;
    for (long turn = 0; turn < times; turn++) sum += turn;
    return sum;
}

__attribute__((noinline)) long half(long scale) { return leaf(5 * scale) + 1; }
__attribute__((noinline)) long third(long scale) { return leaf(3 * scale) + 1; }
__attribute__((noinline)) long fifth(long scale) { return leaf(2 * scale) + 1; }

int main(int count, char **words) {
    long scale = count > 1 ? atol(words[1]) : 1000, sum = 0;
    for (int turn = 0; turn < 100; turn++) sum += half(scale) + third(scale) + fifth(scale);
    return sum == 0;
}
