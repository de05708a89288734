package workspace

import (
	"bufio"
	"context"
	"io"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
	"github.com/engi-dev/engi/internal/workspace/transfer"
)

const (
	mainBranch = "refs/heads/main" // the only branch; other workspaces serve as branches
	pushTime   = 15 * time.Minute  // maximum time for sending a pack
	maxGit     = 4                 // maximum number of git requests of one owner at a time; others wait
)

// refs returns the branch of a workspace; none before the first revision.
func (s *Service) refs(ctx context.Context, id engi.WorkspaceID) ([]transfer.Ref, error) {
	last, err := s.opt.Store.Revisions(ctx, id, engi.Paging{Limit: 1})
	if err != nil || len(last) == 0 {
		return nil, err
	}
	return []transfer.Ref{{Name: mainBranch, Hash: last[0].Commit}}, nil
}

// GitRefs implements [engi.Workspaces].
func (s *Service) GitRefs(ctx context.Context, viewer engi.Viewer, idOrName string, push bool, w io.Writer) (err error) {
	defer engi.Annotate(&err, "branches of workspace %.70s", idOrName)
	need, advertise := engi.RoleViewer, transfer.Advertise
	if push {
		need, advertise = engi.RoleEditor, transfer.AdvertisePush
	}
	r, err := s.find(ctx, viewer, idOrName, need)
	if err != nil {
		return err
	}
	refs, err := s.refs(ctx, r.ID)
	if err != nil {
		return err
	}
	return advertise(w, refs)
}

// GitFetch implements [engi.Workspaces].
func (s *Service) GitFetch(ctx context.Context, viewer engi.Viewer, idOrName string, request io.Reader, w io.Writer) (err error) {
	defer engi.Annotate(&err, "fetch from workspace %.70s", idOrName)
	r, err := s.find(ctx, viewer, idOrName, engi.RoleViewer)
	if err != nil {
		return err
	}
	q, err := transfer.Read(request)
	if err != nil {
		return err
	}
	release, err := s.gits.Acquire(ctx, viewer.Owner())
	if err != nil {
		return err
	}
	defer release()
	return q.Answer(ctx, w, s.source(r.ID))
}

// GitPush implements [engi.Workspaces].
func (s *Service) GitPush(ctx context.Context, viewer engi.Viewer, idOrName string, request io.Reader, w io.Writer) (err error) {
	defer engi.Annotate(&err, "push to workspace %.70s", idOrName)
	r, err := s.find(ctx, viewer, idOrName, engi.RoleEditor)
	if err != nil {
		return err
	}
	in := bufio.NewReaderSize(request, 64<<10)
	p, err := transfer.ReadPush(in)
	if err != nil {
		return err
	}
	release, err := s.gits.Acquire(ctx, viewer.Owner())
	if err != nil {
		return err
	}
	defer release()
	u, wanted := p.Of(mainBranch)
	var failed error
	switch {
	case wanted && u.New != "":
		failed = s.push(ctx, viewer, r, u, in)
	case wanted:
		failed = engi.Errorf(engi.Invalid, "the branch main cannot be deleted").WithRemedy("go back to an earlier revision with 'engi workspace restore'")
	}
	if failed != nil || !wanted {
		_, _ = io.CopyN(io.Discard, in, maxTree) // git reads no answer before it has sent everything
	}
	err = p.Report(w, func(u transfer.Update) error {
		if u.Name == mainBranch {
			return failed
		}
		return engi.Errorf(engi.Invalid, "a workspace has the branch main, and no tags").WithRemedy("push to main: git push REMOTE HEAD:main")
	})
	if engi.Is(failed, engi.Internal) {
		err = failed // for the log; the client already has its answer
	}
	return err
}

// push records the commits that a client has pushed to the branch main as a revision.
func (s *Service) push(ctx context.Context, viewer engi.Viewer, r Record, update transfer.Update, in io.Reader) (err error) {
	h := &held{s: s, owner: r.Owner}
	defer h.drop()
	bounded, cancel := context.WithTimeoutCause(ctx, pushTime, engi.Errorf(engi.Expired, "the pack has not arrived in %v", pushTime))
	defer cancel()
	pack, err := transfer.Unpack(bounded, in, s.source(r.ID), h.take)
	if err != nil {
		return err
	}
	added, err := pack.Added(ctx, update.Old, update.New, func(ctx context.Context, kind repo.Kind, hashes []string) (map[string]int64, error) {
		return s.opt.Store.Sizes(ctx, r.ID, kind, hashes)
	})
	if err != nil {
		return err
	}
	v, err := repo.Read(ctx, pack.Before(s.source(r.ID)), update.New, CheckPath)
	if err != nil {
		return err
	}
	r, release, err := s.hold(ctx, viewer, string(r.ID), engi.RoleEditor)
	if err != nil {
		return err
	}
	defer release()
	u, err := s.use(ctx, r, true)
	if err != nil {
		return err
	}
	defer u.leave()
	if u.last.Commit != update.Old {
		return engi.Errorf(engi.Conflict, "there is another revision, %d", u.rec.Revision).WithRemedy("pull first, and push again")
	}
	if u.last.Commit == update.New {
		return nil
	}
	before := u.last.Files
	rev := engi.WorkspaceRevision{Message: messageOf(added.Message), Actor: engi.ActorOf(ctx), Created: now()}
	var size int64
	if rev.Changed, size, err = s.measure(ctx, u, v.Files, added.Objects); err != nil {
		return err
	}
	if rev.Message == "" {
		rev.Message = summary(rev.Changed)
	}
	if _, err := s.commit(ctx, u, v, size, added.Objects, rev, nil); err != nil {
		return err
	}
	if err := s.follow(ctx, u, before); err != nil {
		// The push is recorded, so it has succeeded. The next change writes it to the sandbox.
		s.opt.Log.WarnContext(ctx, "put what was pushed into the sandbox of a workspace", "workspace", r.ID, "error", err)
	}
	return nil
}
