// Package mounts finds what is mounted on the node.
package mounts

import (
	"bufio"
	"os"
	"strings"
)

// In returns the mount points at and below a directory, in the order in which they were
// mounted.
func In(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var points []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		at := escapes.Replace(fields[4])
		if at == dir || strings.HasPrefix(at, dir+"/") {
			points = append(points, at)
		}
	}
	return points, lines.Err()
}

var escapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
