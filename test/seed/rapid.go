package seed

import (
	"flag"
	"os"
	"strconv"
)

// init sets the seed of rapid before the command line is read, so that -rapid.seed and
// RAPID_SEED keep their meaning. rapid prints the seed of a property that fails.
func init() {
	f := flag.Lookup("rapid.seed")
	if f == nil || f.Value.String() != "0" {
		return
	}
	seed, err := of(os.Getenv, "", 1)
	if err == nil {
		err = f.Value.Set(strconv.FormatUint(seed, 10))
	}
	if err != nil {
		panic(err)
	}
}
