package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// idsVariable is set for commands that boot a machine whose processes run as
// users that the host does not have: "FD DIR". FD is a user namespace that maps
// them, DIR a directory that everybody may enter, and the process has a mount
// namespace of its own.
const idsVariable = "ENGI_IDS"

// annotSource is followed by a path below DIR: the directory or file of the host
// that is to be there, as those users see it.
const annotSource = "dev.engi.source."

// mapIDs mounts what the machine is made of below a directory, with the owners of
// files mapped as the machine's processes are. Otherwise these could neither
// reach it, since directories of engi are for root alone, nor would they own it.
func mapIDs() error {
	value := os.Getenv(idsVariable)
	if value == "" {
		return nil
	}
	os.Unsetenv(idsVariable)
	number, dir, _ := strings.Cut(value, " ")
	fd, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	sources, err := annotatedSources(os.Args)
	if err != nil {
		return err
	}
	// What the host unmounts later must not stay busy, and nothing goes back.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("leave the mounts of the host: %v", err)
	}
	trees := map[string]int{}
	for place, source := range sources {
		tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("open %s: %v", source, err)
		}
		defer unix.Close(tree)
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(fd)}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
			return fmt.Errorf("map the owners of %s: %v", source, err)
		}
		trees[place] = tree
	}
	if err := unix.Mount("engi", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=711,size=64k"); err != nil {
		return fmt.Errorf("mount a directory: %v", err)
	}
	for place, tree := range trees {
		if err := makePlace(place, tree); err != nil {
			return err
		}
		if err := unix.MoveMount(tree, "", unix.AT_FDCWD, place, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount %s: %v", sources[place], err)
		}
	}
	return nil
}

// makePlace creates a directory or a file to mount a tree at.
func makePlace(place string, tree int) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.Mkdir(place, 0o700)
	}
	return os.WriteFile(place, nil, 0o600)
}

// annotatedSources returns the sources in the annotations of the bundle that the
// command line names, by place.
func annotatedSources(args []string) (map[string]string, error) {
	bundle := ""
	for i, arg := range args[:max(0, len(args)-1)] {
		if strings.TrimLeft(arg, "-") == "bundle" {
			bundle = args[i+1]
		}
	}
	f, err := os.Open(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.NewDecoder(io.LimitReader(f, 1<<24)).Decode(&spec); err != nil {
		return nil, err
	}
	sources := map[string]string{}
	for key, source := range spec.Annotations {
		if place, ok := strings.CutPrefix(key, annotSource); ok {
			sources[place] = source
		}
	}
	return sources, nil
}
