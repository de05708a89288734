package rest

import (
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

func sizeOf(x engi.Size) v1.Size {
	return v1.Size{
		VCPUs: x.VCPUs, Memory: v1.Bytes(x.Memory), Disk: v1.Bytes(x.Disk), Inodes: x.Inodes,
		Processes: x.Processes, OpenFiles: x.OpenFiles,
	}
}

// moment returns a pointer to t, and nil for the zero time.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// length returns d for the wire, where durations are never negative. The clock
// of a guest may differ from the host's, which makes d negative.
func length(d time.Duration) v1.Duration { return v1.Duration(max(0, d)) }

// listOf converts each item of a list. A list without items is [] on the wire.
func listOf[X, T any](xs []X, f func(X) T) v1.List[T] {
	list := v1.List[T]{Items: make([]T, 0, len(xs))}
	for _, x := range xs {
		list.Items = append(list.Items, f(x))
	}
	return list
}

// orEmpty returns xs, or an empty list if xs is nil, which JSON would write as null.
func orEmpty[X any](xs []X) []X {
	if xs == nil {
		return []X{}
	}
	return xs
}
