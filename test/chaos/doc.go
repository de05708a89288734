// Package chaos kills what can be killed while engi works, and then asks
// three things: was every acknowledged execution answered, was every answer
// right, and is anything left behind. The seed of a run is printed; giving it
// again as ENGI_CHAOS_SEED repeats the same faults in the same order.
package chaos
