package rest

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// Names of the git programs that a client talks to.
const (
	gitFetched = "git-upload-pack"
	gitPushed  = "git-receive-pack"
)

// gitType returns the media type of a part of the exchange with a git program.
func gitType(program, part string) string { return "application/x-" + program + "-" + part }

type getGitRefs struct {
	aWorkspace
	Service string `query:"service" required:"true" maxLength:"64" doc:"git-upload-pack to fetch, git-receive-pack to push" example:"git-upload-pack"`
}

// cloning returns the routes for git clients.
func (w *workspaces) cloning(one string, look, change Access) []Route {
	return []Route{
		raw(Route{
			Pattern: "GET " + one + "/git/info/refs", ID: "get-workspace-git-refs", Summary: "List the git refs of a workspace", Access: look, Password: true,
			Text:    "git sends this request when it clones, fetches or pushes with the address that ends with /git. The branch main is the last revision. The API key may be the password of basic authentication.",
			Answers: []answer{bytesOf(http.StatusOK, gitType(gitFetched, "advertisement"), nil), bytesOf(http.StatusOK, gitType(gitPushed, "advertisement"), nil)},
		}, w.gitRefs),
		raw(Route{
			Pattern: "POST " + one + "/git/" + gitFetched, ID: "fetch-workspace-git", Summary: "Serve git fetch for a workspace", Access: look, Password: true,
			Text:    "git sends this request: gitprotocol-http(5), version 0.",
			Uploads: []string{gitType(gitFetched, "request")}, Answers: []answer{bytesOf(http.StatusOK, gitType(gitFetched, "result"), nil)},
		}, w.gitFetch),
		raw(Route{
			Pattern: "POST " + one + "/git/" + gitPushed, ID: "push-workspace-git", Summary: "Accept a git push to a workspace", Access: change, Password: true,
			Text: "git sends this request: gitprotocol-http(5), version 0. The commit that is pushed to main becomes one revision. The commit must be a descendant of the last revision " +
				"and must have neither symbolic links nor submodules. If a branch is refused, the answer says why in the form that git expects.",
			Uploads: []string{gitType(gitPushed, "request")}, Answers: []answer{bytesOf(http.StatusOK, gitType(gitPushed, "result"), nil)},
		}, w.gitPush),
	}
}

func (w *workspaces) gitRefs(c *call, in *getGitRefs, _ none) error {
	if in.Service != gitFetched && in.Service != gitPushed {
		return engi.Errorf(engi.Unsupported, "git can fetch from workspaces and push to them; %.60q is neither", in.Service).WithRemedy("use 'git clone', 'git fetch' or 'git push'")
	}
	c.answerGit(in.Service, "advertisement")
	return w.GitRefs(c, c.viewer(), in.ID, in.Service == gitPushed, httpio.DeadlineWriter{W: c})
}

// answerGit sets the headers of an answer to a git client.
func (c *call) answerGit(program, part string) {
	c.Header().Set("Content-Type", gitType(program, part))
	c.Header().Set("Cache-Control", "no-cache")
}

// decompressed returns a body, decompressed if the client compressed it.
func (c *call) decompressed(body io.Reader) (io.Reader, error) {
	if c.r.Header.Get("Content-Encoding") != "gzip" {
		return body, nil
	}
	z, err := gzip.NewReader(body)
	if err != nil {
		return nil, httpio.Errorf(http.StatusBadRequest, "send it as it is", "the body is not compressed with the declared encoding: %v", err)
	}
	return z, nil
}

func (w *workspaces) gitFetch(c *call, in *aWorkspace, _ none) error {
	if _, err := w.Get(c, c.viewer(), in.ID); err != nil { // check before reading the body
		return err
	}
	body, err := c.readBody()
	if err != nil {
		return err
	}
	defer c.free(body)
	request, err := c.decompressed(bytes.NewReader(body))
	if err != nil {
		return err
	}
	c.answerGit(gitFetched, "result")
	return w.GitFetch(c, c.viewer(), in.ID, request, httpio.DeadlineWriter{W: c})
}

func (w *workspaces) gitPush(c *call, in *aWorkspace, _ none) error {
	body := httpio.NewBody(c, c.r)
	defer body.Stop()
	request, err := c.decompressed(body)
	if err != nil {
		return err
	}
	c.answerGit(gitPushed, "result")
	return w.GitPush(c, c.viewer(), in.ID, request, httpio.DeadlineWriter{W: c})
}
