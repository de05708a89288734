package database_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// BenchmarkQuery connects, queries and disconnects, like each call.
func BenchmarkQuery(b *testing.B) {
	for _, kind := range []engi.ServiceType{engi.ServicePostgres, engi.ServiceMySQL} {
		s := started(b, kind)
		for _, q := range []engi.Query{{Text: "SELECT 1"}, {Text: "SELECT 1", ReadOnly: true}} {
			name := string(kind)
			if q.ReadOnly {
				name += ", read-only"
			}
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					if r, err := s.Query(b.Context(), q); err != nil || r.Error != nil {
						b.Fatal(err, r.Error)
					}
				}
			})
		}
	}
}
