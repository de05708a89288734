package fleet

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func TestSamplesOfAnHour(t *testing.T) {
	var s samples
	start := time.Unix(1_700_000_000, 0).UTC()
	const n = 1000 // samples of more than an hour
	for i := range n {
		got := s.add(engi.Sample{Time: start.Add(time.Duration(i) * sampleEvery), Memory: int64(i)}, time.Duration(i)*sampleEvery/2)
		if want := 50.0; i > 0 && got.CPUPercent != want {
			t.Fatalf("sample %d says %g%%, want %g%%", i, got.CPUPercent, want)
		}
	}
	all := s.between(time.Time{}, time.Time{})
	if len(all) != fineSamples+longSamples {
		t.Errorf("%d samples are kept, want %d", len(all), fineSamples+longSamples)
	}
	for i := range all[1:] {
		if !all[i+1].Time.After(all[i].Time) {
			t.Fatal("not oldest first")
		}
	}
	if span := all[len(all)-1].Time.Sub(all[0].Time); span < time.Hour || span > 70*time.Minute {
		t.Errorf("they reach back %v, want about an hour", span)
	}
	last := all[len(all)-1].Time
	if got := s.between(last.Add(-20*time.Second), last.Add(-5*time.Second)); len(got) != 4 {
		t.Errorf("%d samples between, want 4", len(got))
	}
	// The time of another machine starts at zero.
	if got := s.add(engi.Sample{Time: last.Add(sampleEvery)}, time.Millisecond); got.CPUPercent != 0 {
		t.Errorf("the first sample of another machine says %g%%", got.CPUPercent)
	}
}

func TestIdleGuestsAreNotAsked(t *testing.T) {
	var s samples
	if _, ok := s.still(0); ok {
		t.Error("there is no sample to repeat")
	}
	s.add(engi.Sample{Time: time.Unix(1, 0), DiskUsed: 7}, time.Second)
	for i := range idleMany {
		if last, ok := s.still(time.Second + idleTime); !ok || last.DiskUsed != 7 {
			t.Errorf("question %d: %+v, %v", i, last, ok)
		}
	}
	if _, ok := s.still(time.Second); ok {
		t.Error("it is never asked again")
	}
	if _, ok := s.still(2 * time.Second); ok {
		t.Error("it computed, and is not asked")
	}
}
