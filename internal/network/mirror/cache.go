package mirror

import (
	"bytes"
	"cmp"
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A cache keeps the responses of registries, one file for each key: a block with the
// head, then the body. A file is either complete or absent: it is written under
// a temporary name first. The first use of a file after the start reads all of it, so
// that a body damaged on disk is found and removed.
type cache struct {
	dir  string
	size int64

	mu     sync.Mutex
	files  map[string]*list.Element // elements with *cached, by file name; guarded by mu
	used   *list.List               // most recently used first; guarded by mu
	bytes  int64                    // bytes of all files; guarded by mu
	coming int64                    // bytes of files being written; guarded by mu
}

type cached struct {
	name    string
	size    int64 // bytes on disk
	checked bool
	touched time.Time
	fetched time.Time // time at which the registry last confirmed the content
}

// A head describes the body in the same file.
type head struct {
	Key      string    `json:"key"`
	Status   int       `json:"status"`
	Media    string    `json:"media,omitempty"`
	ETag     string    `json:"etag,omitempty"`
	Modified string    `json:"modified,omitempty"`
	Fetched  time.Time `json:"fetched"`
	Size     int64     `json:"size"`
	SHA256   string    `json:"sha256"`
}

const (
	headSize   = 4 << 10
	tempPrefix = "new-"
)

// openCache opens the cache in dir and lists the files of earlier processes.
func openCache(dir string, size int64) (*cache, error) {
	c := &cache{dir: dir, size: size, files: map[string]*list.Element{}, used: list.New()}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, engi.Errorf(engi.Denied, "package cache: %v", err).WithRemedy("make the data directory writable")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, engi.Errorf(engi.Denied, "package cache: %v", err)
	}
	var found []*cached
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			os.Remove(filepath.Join(dir, e.Name()))
			continue
		}
		if info, err := e.Info(); err == nil && len(e.Name()) == 2*sha256.Size && info.Mode().IsRegular() {
			found = append(found, &cached{name: e.Name(), size: info.Size(), touched: info.ModTime()})
		}
	}
	slices.SortFunc(found, func(a, b *cached) int { return cmp.Compare(b.touched.UnixNano(), a.touched.UnixNano()) })
	for _, f := range found {
		c.files[f.name] = c.used.PushBack(f)
		c.bytes += f.size
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evict()
	return c, nil
}

func fileName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// An entry is an open file of the cache. The caller closes it.
type entry struct {
	head
	file *os.File
}

func (e *entry) close()                  { e.file.Close() }
func (e *entry) body() *io.SectionReader { return io.NewSectionReader(e.file, headSize, e.Size) }

// open returns the entry for a key, or nil if there is none.
func (c *cache) open(key string) *entry {
	name := fileName(key)
	c.mu.Lock()
	at := c.files[name]
	if at == nil {
		c.mu.Unlock()
		return nil
	}
	f := at.Value.(*cached)
	c.used.MoveToFront(at)
	checked, fetched := f.checked, f.fetched
	touch := time.Since(f.touched) > time.Minute
	if touch {
		f.touched = time.Now()
	}
	c.mu.Unlock()
	path := filepath.Join(c.dir, name)
	file, err := os.Open(path)
	if err != nil {
		c.forget(name)
		return nil
	}
	e := &entry{file: file}
	if !e.read(key, checked) {
		file.Close()
		c.remove(name)
		return nil
	}
	if e.Fetched.Before(fetched) {
		e.Fetched = fetched
	}
	if !checked {
		c.mu.Lock()
		f.checked = true
		c.mu.Unlock()
	}
	if touch {
		_ = os.Chtimes(path, time.Now(), time.Now()) // a failure only affects the order of removal
	}
	return e
}

// read reads the head and, unless the file was checked, compares the body with it.
func (e *entry) read(key string, checked bool) bool {
	block := make([]byte, headSize)
	if _, err := e.file.ReadAt(block, 0); err != nil {
		return false
	}
	info, err := e.file.Stat()
	if err != nil || json.Unmarshal(bytes.TrimRight(block, " "), &e.head) != nil || e.Key != key || info.Size() != headSize+e.Size {
		return false
	}
	if checked {
		return true
	}
	h := sha256.New()
	_, err = io.Copy(h, e.body())
	return err == nil && hex.EncodeToString(h.Sum(nil)) == e.SHA256
}

// renew records that a registry confirmed an entry. The record is kept in memory only: a new
// process asks the registry again.
func (c *cache) renew(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.files[fileName(key)]; at != nil {
		at.Value.(*cached).fetched = time.Now()
	}
}

// temp creates a file for a body, which begins after the block of the head.
func (c *cache) temp() (*os.File, error) {
	f, err := os.CreateTemp(c.dir, tempPrefix)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "package cache: %v", err)
	}
	if _, err := f.Seek(headSize, io.SeekStart); err != nil {
		f.Close()
		os.Remove(f.Name())
		return nil, engi.Errorf(engi.Unavailable, "package cache: %v", err)
	}
	return f, nil
}

// put gives a temporary file its head and its name, and makes room for it.
func (c *cache) put(f *os.File, h head) error {
	block, err := json.Marshal(h)
	if err != nil || len(block) > headSize {
		return engi.Errorf(engi.Internal, "package cache: a head of %d bytes: %v", len(block), err)
	}
	block = append(block, bytes.Repeat([]byte(" "), headSize-len(block))...)
	if _, err := f.WriteAt(block, 0); err != nil {
		return engi.Errorf(engi.Unavailable, "package cache: %v", err)
	}
	name := fileName(h.Key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.Rename(f.Name(), filepath.Join(c.dir, name)); err != nil {
		return engi.Errorf(engi.Unavailable, "package cache: %v", err)
	}
	c.drop(name)
	c.files[name] = c.used.PushFront(&cached{name: name, size: headSize + h.Size, checked: true, touched: time.Now(), fetched: h.Fetched})
	c.bytes += headSize + h.Size
	c.evict()
	return nil
}

// evict removes the least recently used files until the cache fits. The caller
// holds c.mu.
func (c *cache) evict() {
	for c.bytes+c.coming > c.size && c.used.Len() > 0 {
		name := c.used.Back().Value.(*cached).name
		c.drop(name)
		os.Remove(filepath.Join(c.dir, name))
	}
}

// A reservation makes room for a file while it is written.
type reservation struct {
	cache *cache
	bytes int64
}

// Write implements [io.Writer]. It returns Exhausted if files being
// written would take the whole cache.
func (r *reservation) Write(p []byte) (int, error) {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.coming+int64(len(p)) > c.size {
		return 0, engi.Errorf(engi.Exhausted, "the package cache is too small for the packages being downloaded").WithRemedy("try again; the operator may raise mirror.size")
	}
	c.coming += int64(len(p))
	r.bytes += int64(len(p))
	c.evict()
	return len(p), nil
}

func (r *reservation) release() {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	r.cache.coming -= r.bytes
	r.bytes = 0
}

// drop forgets a file. The caller holds c.mu.
func (c *cache) drop(name string) {
	if at := c.files[name]; at != nil {
		c.bytes -= at.Value.(*cached).size
		c.used.Remove(at)
		delete(c.files, name)
	}
}

func (c *cache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(name)
}

func (c *cache) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(name)
	os.Remove(filepath.Join(c.dir, name))
}

func (c *cache) usage() (files int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.files), c.bytes
}

func (c *cache) clear() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.files {
		if err := os.Remove(filepath.Join(c.dir, name)); err != nil && !os.IsNotExist(err) {
			return engi.Errorf(engi.Unavailable, "package cache: %v", err)
		}
		c.drop(name)
	}
	return nil
}
