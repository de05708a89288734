package engi

import "slices"

// A Paging selects a page of a list. The zero value selects the whole list. Lists report Invalid
// for a page after an object that they do not have.
type Paging struct {
	Limit int    // maximum number of objects; 0 means no limit
	After string // ID of the last object of the previous page; empty means the beginning
}

// Lost returns the error for a page after an object that the list does not have: the object
// has another owner, was deleted, or never existed.
func (p Paging) Lost() error {
	return Errorf(Invalid, "there is no %.80q to go on after", p.After).WithRemedy("list again from the beginning: it may have been removed")
}

// Cut returns the page p of a list whose objects have IDs.
func Cut[T any](p Paging, all []T, id func(T) string) ([]T, error) {
	if p.After != "" {
		i := slices.IndexFunc(all, func(x T) bool { return id(x) == p.After })
		if i < 0 {
			return nil, p.Lost()
		}
		all = all[i+1:]
	}
	if p.Limit > 0 {
		all = all[:min(p.Limit, len(all))]
	}
	return all, nil
}
