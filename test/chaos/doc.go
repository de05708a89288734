// Package chaos kills the parts of a real node while it works, and then checks
// that every acknowledged execution and write was kept, that every answer is
// right, and that nothing is left behind. Each run prints its seed; passed
// as ENGI_CHAOS_SEED, the seed repeats the same faults in the same order.
package chaos
