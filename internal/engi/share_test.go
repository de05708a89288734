package engi

import "testing"

// TestShares lets owners take, one after the other, as much as they can.
func TestShares(t *testing.T) {
	s := NewShares(1024)
	for _, o := range []struct {
		owner Owner
		want  int
	}{{"hog", 768}, {"second", 192}, {"third", 48}, {"fourth", 12}, {"fifth", 3}, {"sixth", 1}, {"hog", 0}, {"seventh", 0}} {
		n := 0
		for s.Take(o.owner, 1) {
			n++
		}
		if n != o.want {
			t.Errorf("%s got %d, want %d", o.owner, n, o.want)
		}
	}
	s.Give("hog", 500)
	if s.Take("hog", 1) != true || s.Take("eighth", 300) != true || s.Take("hog", 300) {
		t.Error("after 500 of 1,024 were given back")
	}
	s.Add("eighth", 2000)
	if s.Take("ninth", 1) || s.Of("eighth") != 2300 {
		t.Error("more is taken than there is")
	}
	whole := NewShares(8)
	if !whole.Take("a", 8) || whole.Take("a", 1) {
		t.Error("one that takes everything at once")
	}
}
