// Command goja times a small script in goja, an interpreter that a Go program
// can embed: "engi bench script --compare" compares its own
// figures with it. It is no part of engi, whose programs do not link goja.
//
// It takes a program and a number, runs the program this many times, each time in a
// fresh realm and with console and one function of the host as engi's scripts
// have, and prints the nanoseconds of each run as a list in JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/dop251/goja"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "goja:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: goja PROGRAM N")
	}
	n, err := strconv.Atoi(os.Args[2])
	if err != nil || n < 1 || n > 10_000_000 {
		return fmt.Errorf("%q is no number of runs", os.Args[2])
	}
	all := make([]int64, n)
	for i := range all {
		began := time.Now()
		answer, err := once(os.Args[1])
		if err != nil {
			return err
		}
		all[i] = time.Since(began).Nanoseconds()
		if answer != "2" {
			return fmt.Errorf("the program answered %s", answer)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

// once runs the program in a fresh realm and returns its value as JSON.
func once(code string) (string, error) {
	vm := goja.New()
	var lines []string
	console := vm.NewObject()
	if err := console.Set("log", func(line string) { lines = append(lines, line) }); err != nil {
		return "", err
	}
	if err := vm.Set("console", console); err != nil {
		return "", err
	}
	v, err := vm.RunString(code)
	if err != nil {
		return "", err
	}
	answer, err := json.Marshal(v.Export())
	return string(answer), err
}
