/* A program of which two builds are explained: `GROWN` turns are added below `third`, and nothing else changes. */

#include <stdlib.h>

#ifndef GROWN
#define GROWN 0
#endif

__attribute__((noinline)) long spin(long times) {
    volatile long sum = 0;
    for (long turn = 0; turn < times; turn++) sum += turn;
    return sum;
}

__attribute__((noinline)) long half(long scale) {
    volatile long sum = 0;
    for (long turn = 0; turn < 5 * scale; turn++) sum += turn;
    return sum;
}

__attribute__((noinline)) long third(long scale) {
    volatile long sum = 0;
    for (long turn = 0; turn < 3 * scale + GROWN * scale; turn++) sum += turn;
    return sum;
}

int main(int count, char **words) {
    long scale = count > 1 ? atol(words[1]) : 1000, sum = 0;
    for (int turn = 0; turn < 100; turn++) sum += half(scale) + third(scale) + spin(2 * scale);
    return sum == 0;
}
