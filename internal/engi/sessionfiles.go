package engi

import "context"

// A GitSpec is the git repository of a session. It is cloned inside the
// session's sandbox; the gateway allows the paths that git needs and adds the
// credential to its requests.
type GitSpec struct {
	URL        string // https://HOST[:PORT]/PATH without user and password; http:// if the session's policy allows the host
	Ref        string // branch, tag or full ID of a commit; empty means the repository's default
	Depth      int    // number of commits to fetch; 0 means all
	Submodules bool   // clone submodules too; those on the repository's host are reachable
	Secret     string // ID or name of the secret with the password or token; empty for none
	User       string // user for the secret; empty means git
	Dir        string // directory relative to /workspace; empty means the last element of the URL
	Push       *GitPush
}

// A GitPush says how the changes of a session are committed and pushed. Empty fields
// mean those of the session's [GitSpec], in which a nil GitPush forbids pushing.
type GitPush struct {
	OnRelease bool   // in a GitSpec: also push when the sandbox is released and when the session ends
	Branch    string // empty means engi/ and the session's name or ID
	Author    string // NAME <ADDRESS>; empty means engi
	Message   string // message of the commit; empty means one that names the session
}

// GitPushed is the result of a push.
type GitPushed struct {
	Branch    string
	Commit    string // full ID
	Conflict  bool   // the requested branch has commits that the session lacks, so Branch is a new one
	Unchanged bool   // the branch already had the commit
}

// SessionFiles saves the files of sessions to places that outlive the node.
// Methods find the same objects as those of [Sessions]. It is safe for concurrent use.
type SessionFiles interface {
	// PushGit commits and pushes the changes in the session's repository.
	// It reports Denied if the session may not push.
	PushGit(ctx context.Context, viewer Viewer, idOrName string, p GitPush) (GitPushed, error)
	// SaveWorkspace copies the files of a session of persistence workspace to
	// the node's file store, whether or not the session has a sandbox.
	SaveWorkspace(ctx context.Context, viewer Viewer, idOrName string) (WorkspaceCopy, error)
}

// A WorkspaceCopy is the result of saving the files of a session.
type WorkspaceCopy struct {
	Files    int   // number of files, directories and links
	Bytes    int64 // bytes of all files
	Uploaded int64 // bytes that the store did not have
	Skipped  int   // pipes, sockets and devices, which are not copied
}
