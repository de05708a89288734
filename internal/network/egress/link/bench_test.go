package link_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/internal/network/egress/link"
)

// BenchmarkSlots creates links and measures the memory that a link uses in the host's kernel.
func BenchmarkSlots(b *testing.B) {
	p := open(b, link.Options{})
	before := kernelMemory(b)
	var slots []egress.Link
	for b.Loop() {
		slots = append(slots, take(b, p))
	}
	b.ReportMetric(float64(kernelMemory(b)-before)/float64(len(slots)), "KiB/slot")
	for _, slot := range slots {
		slot.Close()
	}
}

// kernelMemory returns the memory that the kernel itself uses, in KiB.
func kernelMemory(b *testing.B) (sum int) {
	b.Helper()
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		name, rest, _ := strings.Cut(line, ":")
		switch name {
		case "Slab", "Percpu", "VmallocUsed":
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				b.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
