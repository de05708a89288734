package terminal

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
)

// secretPrefix is the prefix of the secrets of links.
const secretPrefix = "engi_link_"

var errLink = engi.Errorf(engi.Anonymous, "the link has expired, was removed, or never existed").WithRemedy("ask for a new link")

// Share creates a link, and returns its secret, which is not stored.
func (m *Manager) Share(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID, l engi.TerminalLink, ttl time.Duration) (_ engi.TerminalLink, secret string, err error) {
	defer engi.Annotate(&err, "share terminal %.40s", id)
	if ttl < time.Second || ttl > LongestLink {
		return l, "", engi.Errorf(engi.Invalid, "a link cannot be valid for %s", ttl).WithRemedy("choose a time between 1s and %s", LongestLink)
	}
	t, _, err := m.find(ctx, viewer, p, id)
	if err != nil {
		return l, "", err
	}
	m.creating.Lock()
	defer m.creating.Unlock()
	all, err := m.Links(ctx, viewer, p, id)
	if err != nil {
		return l, "", err
	}
	if len(all) >= MaxLinks {
		return l, "", engi.Errorf(engi.Exhausted, "there are %d links to it already", len(all)).WithRemedy("remove some links")
	}
	l.Terminal, l.Owner = t.ID, t.Owner
	l.Created = time.Now().UTC().Truncate(time.Millisecond)
	l.Expires = l.Created.Add(ttl)
	secret = secretPrefix + rand.Text() + rand.Text()
	return l, secret, m.o.Store.PutLink(ctx, l, hashOf(secret))
}

func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// Links returns the links of a terminal that have not expired, newest first.
func (m *Manager) Links(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID) (valid []engi.TerminalLink, err error) {
	t, _, err := m.find(ctx, viewer, p, id)
	if err != nil {
		return nil, err
	}
	all, err := m.o.Store.Links(ctx, t.ID)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if time.Now().Before(l.Expires) {
			valid = append(valid, l)
		} else if err := engi.Ignore(m.o.Store.RemoveLink(ctx, t.ID, l.ID), engi.NotFound); err != nil {
			return nil, err
		}
	}
	return valid, nil
}

// Unshare revokes a link and disconnects the viewers who used it.
func (m *Manager) Unshare(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID, link engi.TerminalLinkID) error {
	t, _, err := m.find(ctx, viewer, p, id)
	if err != nil {
		return err
	}
	if err := m.o.Store.RemoveLink(ctx, t.ID, link); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.rooms[t.ID]; r != nil {
		for _, a := range r.viewers {
			if a.Link == link {
				a.cancel(errLink)
			}
		}
	}
	return nil
}

// Follow attaches a viewer with the secret of a link. It reports Anonymous if the secret is
// not valid, for whatever reason.
func (m *Manager) Follow(ctx context.Context, secret string, v Viewer) (context.Context, *Attachment, error) {
	l, err := m.o.Store.FindLink(ctx, hashOf(secret))
	if engi.Is(err, engi.NotFound) || err == nil && !time.Now().Before(l.Expires) {
		return nil, nil, errLink
	}
	if err != nil {
		return nil, nil, err
	}
	t, err := m.o.Store.Find(ctx, l.Owner.Viewer(), l.Terminal)
	if err != nil {
		return nil, nil, err
	}
	v.ReadOnly = v.ReadOnly || !l.Write
	v.who, v.link = "link "+string(l.ID), l
	if v.Name == "" {
		v.Name = l.Name
	}
	if v.Name == "" {
		v.Name = "guest"
	}
	view, a, err := m.Attach(ctx, l.Owner.Viewer(), place.Place{Session: string(t.Session), Sandbox: t.Sandbox}, t.ID, v)
	if err != nil {
		return nil, nil, err
	}
	// The link may have been revoked before the viewer was attached.
	if _, err := m.o.Store.FindLink(ctx, hashOf(secret)); err != nil {
		a.Close()
		return nil, nil, errLink
	}
	return view, a, nil
}
