package volume

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/mounts"
)

// Default owner of files written through Files: the user of most templates. The
// directory of a volume is writable by every user.
const (
	defaultUID = 1000
	defaultGID = 1000
)

const loopControl = "/dev/loop-control"

var privileged = os.Geteuid() == 0

// Images returns nil if volumes can be images on this host. Otherwise it reports Unsupported with a
// remedy.
func Images() error {
	_, err := probe()
	return err
}

// probe returns the path of mkfs.ext4 if images work on this host.
func probe() (mkfs string, err error) {
	no := func(remedy, format string, args ...any) (string, error) {
		return "", engi.Errorf(engi.Unsupported, "volumes are plain directories, whose capacity programs can exceed: "+format, args...).WithRemedy("%s", remedy)
	}
	if !privileged {
		return no("run engi as root if capacities matter", "engi does not run as root")
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"} {
		if st, err := os.Stat(filepath.Join(dir, "mkfs.ext4")); err == nil && st.Mode()&0o111 != 0 {
			mkfs = filepath.Join(dir, "mkfs.ext4")
			break
		}
	}
	if mkfs == "" {
		return no("install e2fsprogs: apt-get install e2fsprogs", "there is no mkfs.ext4")
	}
	const allow = "load the kernel module loop, or allow the container that engi runs in to use loop devices"
	ctl, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return no(allow, "there are no loop devices: %v", err)
	}
	defer ctl.Close()
	n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
	if err == nil {
		_, err = os.Stat(loopDevice(n))
	}
	if err != nil {
		return no(allow, "there are no loop devices: %v", err)
	}
	return mkfs, nil
}

func loopDevice(n int) string { return "/dev/loop" + strconv.Itoa(n) }

// create creates the files of a volume.
func (m *Manager) create(ctx context.Context, r Record) error {
	dir := m.dir(r.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fault("make directory", dir, err)
	}
	if err := os.Mkdir(m.mountPoint(r.ID), 0o700); err != nil {
		return fault("make directory", dir, err)
	}
	if !r.Image {
		return m.makeDirs(m.mountPoint(r.ID))
	}
	first := filepath.Join(dir, "first")
	if err := os.Mkdir(first, 0o755); err != nil {
		return fault("make directory", first, err)
	}
	if err := m.makeDirs(first); err != nil {
		return err
	}
	image := filepath.Join(dir, "image")
	f, err := os.OpenFile(image, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fault("create", image, err)
	}
	defer f.Close()
	if err := f.Truncate(r.Capacity &^ 4095); err != nil {
		return fault("create", image, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	// Initialize all tables now, not in a kernel thread later, and reserve no blocks
	// for root.
	cmd := exec.CommandContext(ctx, m.mkfs, "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0",
		"-E", "lazy_itable_init=0,lazy_journal_init=0", "-O", "^resize_inode", "-d", first, image)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return engi.Errorf(engi.Expired, "create a file system: %v", context.Cause(ctx))
		}
		text := strings.TrimSpace(out.String())
		if strings.Contains(text, "No space left") {
			return engi.Errorf(engi.Exhausted, "create a file system: the disk of the data directory is full").WithRemedy("free space on it")
		}
		return engi.Errorf(engi.Internal, "create a file system: %v: %.500s", err, text)
	}
	if err := f.Sync(); err != nil {
		return fault("write", image, err)
	}
	if err := os.RemoveAll(first); err != nil {
		return fault("remove", first, err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fault("open", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fault("write", dir, err)
	}
	return nil
}

// makeDirs creates the directories that every volume has.
func (m *Manager) makeDirs(at string) error {
	for _, d := range []struct {
		name string
		mode fs.FileMode
	}{{"data", 0o777}, {"tmp", 0o700}} {
		path := filepath.Join(at, d.name)
		if err := os.Mkdir(path, 0o700); err != nil {
			return fault("make directory", path, err)
		}
		if privileged && d.name == "data" {
			if err := os.Chown(path, defaultUID, defaultGID); err != nil {
				return fault("change owner of", path, err)
			}
		}
		if err := os.Chmod(path, d.mode); err != nil {
			return fault("change mode of", path, err)
		}
	}
	return nil
}

// mount mounts a volume unless it is already mounted. The caller holds the lock of its state.
func (m *Manager) mount(ctx context.Context, s *state, r Record) error {
	m.setActive(r)
	at := m.mountPoint(r.ID)
	if r.Image && !mounted(at) {
		if !privileged {
			return engi.Errorf(engi.Denied, "it is an image, which only root can mount").WithRemedy("run engi as root, as when the volume was created")
		}
		if err := mountImage(filepath.Join(m.dir(r.ID), "image"), at); err != nil {
			return err
		}
		s.cleaned = false
	}
	if !s.cleaned {
		tmp := filepath.Join(at, "tmp")
		if err := os.RemoveAll(tmp); err != nil {
			return fault("clear", tmp, err)
		}
		if err := os.Mkdir(tmp, 0o700); err != nil && !errors.Is(err, unix.ENOSPC) {
			return fault("make directory", tmp, err)
		}
		if !r.Image {
			used, err := treeBytes(m.dataDir(r.ID))
			if err != nil {
				return err
			}
			s.used = used
		}
		s.cleaned = true
	}
	return nil
}

// mountImage mounts an image with a loop device, which is freed with the last mount.
// If a device already has the image, because a sandbox still has a copy of an
// earlier mount, mountImage uses this device: two devices would corrupt the file system.
func mountImage(image, at string) error {
	var err error
	for range 20 {
		var dev *os.File
		if dev, err = loopOf(image); err != nil {
			return err
		}
		if dev == nil {
			if dev, err = newLoop(image); err != nil {
				return err
			}
		}
		if dev == nil {
			time.Sleep(2 * time.Millisecond) // another process took the free device
			continue
		}
		err = unix.Mount(dev.Name(), at, "ext4", unix.MS_NOSUID|unix.MS_NODEV, "errors=remount-ro,discard")
		dev.Close()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EBUSY):
			continue // the device was being freed
		}
		return engi.Errorf(engi.Internal, "mount %s: %v", image, err).WithRemedy("check it with 'e2fsck -f %s'", image)
	}
	return engi.Errorf(engi.Unavailable, "mount %s: no loop device is free: %v", image, err).WithRemedy("try again; other programs use loop devices, too")
}

// loopOf returns the loop device that has an image, or nil if there is none.
func loopOf(image string) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Stat(image, &want); err != nil {
		return nil, fault("open", image, err)
	}
	found, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		panic(err) // unreachable: the pattern is constant
	}
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil || strings.TrimSuffix(strings.TrimSpace(string(text)), " (deleted)") != image {
			continue
		}
		name := "/dev/" + strings.Split(file, "/")[3]
		dev, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue // the device was being freed
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Inode == want.Ino {
			return dev, nil
		}
		dev.Close()
	}
	return nil, nil
}

// newLoop attaches an image to a free loop device. It returns nil if another process
// took the device.
func newLoop(image string) (*os.File, error) {
	ctl, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fault("open", loopControl, err)
	}
	defer ctl.Close()
	n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fault("find a loop device with", loopControl, err)
	}
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, fault("open", image, err)
	}
	defer f.Close()
	dev, err := os.OpenFile(loopDevice(n), os.O_RDWR, 0)
	if err != nil {
		return nil, fault("open", loopDevice(n), err)
	}
	config := unix.LoopConfig{Fd: uint32(f.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO}}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], filepath.Base(filepath.Dir(image)))
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &config); err != nil {
		dev.Close()
		if errors.Is(err, unix.EBUSY) {
			return nil, nil
		}
		return nil, fault("attach "+image+" to", loopDevice(n), err)
	}
	return dev, nil
}

// freeBlocks frees the blocks of an image that is about to be deleted. Sandboxes that
// started while it was mounted have a copy of the mount, which would keep the
// blocks allocated until they end.
func freeBlocks(image string) error {
	f, err := os.OpenFile(image, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault("open", image, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fault("stat", image, err)
	}
	if st.Size() == 0 {
		return nil
	}
	// Keep the size, since otherwise the kernel would report errors of the device.
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, st.Size())
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fault("empty", image, err)
	}
	return nil
}

// mounted reports whether a file system is mounted on a directory.
func mounted(at string) bool {
	var here, above unix.Stat_t
	return unix.Lstat(at, &here) == nil && unix.Lstat(filepath.Dir(at), &above) == nil && here.Dev != above.Dev
}

// Unmount unmounts the volumes in the directory of a manager that no longer exists, and
// whose sandboxes have ended: volumes stay mounted for a while after their use.
func Unmount(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault("read", dir, err)
	}
	for _, e := range entries {
		if err := unmount(filepath.Join(dir, e.Name(), "at")); err != nil {
			return err
		}
	}
	return nil
}

// unmount unmounts the file system on a directory, if any.
func unmount(at string) error {
	for mounted(at) {
		if err := flush(at); err != nil {
			return err
		}
		// Child processes of this process inherit all open files until they exec.
		err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW)
		for began := time.Now(); err == unix.EBUSY && time.Since(began) < busyTimeout; err = unix.Unmount(at, unix.UMOUNT_NOFOLLOW) {
			time.Sleep(2 * time.Millisecond)
		}
		if err != nil {
			return fault("unmount", at, err)
		}
	}
	return nil
}

// busyTimeout is the time for which a volume may stay busy after its last user.
const busyTimeout = time.Second

// flush syncs a mounted file system. Unmounting syncs only if no sandbox has a copy
// of the mount, and data written to an image after its removal would use space again.
func flush(at string) error {
	fd, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fault("open", at, err)
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return fault("sync", at, err)
	}
	return nil
}

// unmountAll detaches all file systems mounted below a directory, even those in
// use.
func unmountAll(dir string) error {
	points, err := mounts.In(dir)
	if err != nil {
		return fault("look for mounts in", dir, err)
	}
	for _, at := range slices.Backward(points) {
		if at == dir {
			continue
		}
		// Errors do not matter, since the content is deleted anyway.
		_ = flush(at)
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fault("unmount", at, err)
		}
	}
	return nil
}

// allocated returns the number of bytes that a volume uses on the node's disk.
func (m *Manager) allocated(r Record) int64 {
	if !r.Image {
		return r.Used
	}
	var st unix.Stat_t
	if unix.Stat(filepath.Join(m.dir(r.ID), "image"), &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fault("measure", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// usedBytes returns the used bytes of the file system mounted on a directory, if
// there is one.
func usedBytes(at string) (int64, bool) {
	var st unix.Statfs_t
	if !mounted(at) || unix.Statfs(at, &st) != nil {
		return 0, false
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, true
}

// treeBytes returns the bytes on disk below a directory.
func treeBytes(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return nil // the directory may change at the same time
			}
			return err
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			names := int64(1)
			if !d.IsDir() {
				names = max(1, int64(st.Nlink))
			}
			total += st.Blocks * 512 / names
		}
		return nil
	})
	if err != nil {
		return 0, fault("measure", dir, err)
	}
	return total, nil
}

// fault classifies an error of the kernel or of os.
func fault(act, path string, err error) *engi.Error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err // the text of a PathError would repeat the path
	}
	kind := engi.Internal
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return engi.Errorf(engi.Exhausted, "%s %s: the disk is full", act, path).WithRemedy("free space on the disk of the data directory")
	case errors.Is(err, fs.ErrNotExist):
		kind = engi.NotFound
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EBUSY):
		kind = engi.Conflict
	case strings.Contains(err.Error(), "path escapes from parent"):
		return engi.Errorf(engi.Denied, "%s %s: a link leads out of the volume", act, path).WithRemedy("use the path to which the link refers, if it is in the volume")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		kind = engi.Denied
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EXDEV):
		kind = engi.Invalid
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		kind = engi.Exhausted
	}
	return engi.Errorf(kind, "%s %s: %v", act, path, err)
}
