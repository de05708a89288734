package main

import (
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

func TestWaitLine(t *testing.T) {
	until := time.Date(2026, 11, 29, 4, 10, 0, 0, time.Local)
	for want, w := range map[string]v1.FunctionWait{
		"a time, until 2026-11-29 04:10:00":               {Step: "s", Until: &until},
		"an event of type order.paid, order.lost":         {Step: "s", Types: []string{"order.paid", "order.lost"}},
		"an event about sbx_1, until 2026-11-29 04:10:00": {Step: "s", Subject: "sbx_1", Until: &until},
		"an event of type sandbox.* about a\ufffd[31mb":   {Step: "s", Types: []string{"sandbox.*"}, Subject: "a\x1b[31mb"},
	} {
		if got := waitLine(w); got != want {
			t.Errorf("%+v: %q, want %q", w, got, want)
		}
	}
}
