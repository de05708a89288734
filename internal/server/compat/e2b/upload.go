package e2b

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const (
	uploadLink = time.Hour          // lifetime of a link
	uploadKeep = 7 * 24 * time.Hour // time for which an archive is kept after its last use
)

var hashPattern = regexp.MustCompile(`^[A-Za-z0-9]{1,128}$`)

// archive returns the path of an owner's upload. The client chooses the hash unchecked,
// so the hash identifies the content for this owner only.
func (s *Server) archive(owner engi.Owner, hash string) string {
	sum := sha256.Sum256([]byte(owner))
	return filepath.Join(s.Dir, "files", hex.EncodeToString(sum[:8])+"-"+hash)
}

// uploadOf returns the object of a link's token.
func uploadOf(t registry.Template, hash, expires string) string {
	return t.ID + "/" + hash + "/" + expires
}

// fileLink answers whether an archive is present, and else with a link to upload it.
func (s *Server) fileLink(w http.ResponseWriter, r *http.Request, who caller) error {
	t, err := s.ours(r.Context(), who, r.PathValue("id"))
	if err != nil {
		return err
	}
	hash := r.PathValue("hash")
	if !hashPattern.MatchString(hash) {
		return engi.Errorf(engi.Invalid, "%.80q is not a hash", hash)
	}
	path := s.archive(t.Owner, hash)
	if err := os.Chtimes(path, time.Time{}, time.Now()); err == nil {
		return respond(w, http.StatusCreated, map[string]any{"present": true})
	}
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	expires := strconv.FormatInt(time.Now().Add(uploadLink).Unix(), 10)
	link := url.URL{Scheme: scheme, Host: r.Host, Path: "/templates/" + t.ID + "/files/" + hash,
		RawQuery: url.Values{"expires": {expires}, "signature": {s.token(toArchive, uploadOf(t, hash, expires), who.key)}}.Encode()}
	return respond(w, http.StatusCreated, map[string]any{"present": false, "url": link.String()})
}

// putFile receives an archive under a link of fileLink.
func (s *Server) putFile(w http.ResponseWriter, r *http.Request) {
	if err := s.takeFile(w, r); err != nil {
		fail(w, err)
	}
}

func (s *Server) takeFile(w http.ResponseWriter, r *http.Request) (err error) {
	q, hash := r.URL.Query(), r.PathValue("hash")
	t, err := s.Store.Get(r.Context(), engi.Everyone, r.PathValue("id"))
	if err != nil && !missing(err) {
		return err
	}
	until, perr := strconv.ParseInt(q.Get("expires"), 10, 64)
	if err == nil && perr == nil {
		_, err = s.holder(r.Context(), toArchive, uploadOf(t, hash, q.Get("expires")), t.Owner, q.Get("signature"))
	}
	if err != nil && !engi.Is(err, engi.Anonymous) && !missing(err) {
		return err
	}
	if err != nil || perr != nil || !hashPattern.MatchString(hash) || time.Now().Unix() > until {
		return engi.Errorf(engi.Denied, "this link is invalid or has expired: ask for a new link")
	}
	if r.ContentLength > s.MaxUpload {
		return httpio.TooLarge(s.MaxUpload)
	}
	dir := filepath.Join(s.Dir, "files")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	if err := s.sweep(max(r.ContentLength, 0)); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".part-*")
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	defer os.Remove(f.Name())
	n, err := io.Copy(f, http.MaxBytesReader(w, r.Body, s.MaxUpload))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return httpio.TooLarge(s.MaxUpload)
	}
	if err != nil {
		return engi.Errorf(engi.Invalid, "receive the archive: %v", err)
	}
	if r.ContentLength >= 0 && n != r.ContentLength {
		return engi.Errorf(engi.Invalid, "received %d of %d bytes", n, r.ContentLength)
	}
	if r.ContentLength < 0 { // the size was not known before
		if err := s.sweep(0); err != nil {
			return err
		}
	}
	if err := os.Rename(f.Name(), s.archive(t.Owner, hash)); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	return respond(w, http.StatusOK, nil)
}

// sweep deletes archives that have not been used for long, the oldest ones until
// there is room for more bytes, and the remains of failed uploads.
func (s *Server) sweep(more int64) error {
	entries, err := os.ReadDir(filepath.Join(s.Dir, "files"))
	if err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return engi.Errorf(engi.Internal, "%v", err)
	}
	var files []fs.FileInfo
	total := more
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // the file was removed in the meantime
		}
		files = append(files, info)
		total += info.Size()
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) })
	for _, f := range files {
		if total <= s.MaxUploads && time.Since(f.ModTime()) < uploadKeep {
			break
		}
		if err := os.Remove(filepath.Join(s.Dir, "files", f.Name())); err != nil && !os.IsNotExist(err) {
			return engi.Errorf(engi.Internal, "%v", err)
		}
		total -= f.Size()
	}
	return nil
}
