//! Opens files that other users may have placed: rules, tables, tests, traces. Links are followed only
//! beneath the directory of the file, opening never blocks, and only regular files are read.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

use crate::terms::without_number;

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    /// Its length at opening, in bytes.
    pub(crate) bytes: u64,
    /// Whether messages may quote it: it belongs to root, its directory's owner or the user of this process.
    pub(crate) quotable: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("a link leads out of the directory of the file")]
    Outside,
    #[error("not a regular file")]
    NotRegular,
    #[error("cannot read the file: {}", without_number(.0))]
    Io(#[from] io::Error),
}

impl OpenError {
    pub(crate) fn help(&self) -> &'static str {
        match self {
            OpenError::Outside => {
                "copy the file into the directory, link to it from below (`..data/name`), or name its own directory"
            }
            OpenError::NotRegular => "remove it, or put a file in its place",
            OpenError::Io(error) => read_help(error),
        }
    }
}

/// Returns the help for a file or directory that cannot be read.
pub(crate) fn read_help(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the path: there is no such file",
        io::ErrorKind::PermissionDenied => "let the user of this process read it",
        _ if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) => {
            "allow more open files: `LimitNOFILE=` of the service, or `ulimit -n`"
        }
        _ => "check its disk and file system",
    }
}

/// Opens a file whose links stay beneath its directory.
pub(crate) fn beneath(path: &Path) -> Result<Opened, OpenError> {
    // `..` and `/` are directories.
    let name = path.file_name().ok_or(OpenError::NotRegular)?;
    let directory = open_directory(path)?;
    opened(walk(&directory, name), &directory)
}

/// Opens a file with links to anywhere, for a path given by the user of the command.
pub(crate) fn anywhere(path: &Path) -> Result<Opened, OpenError> {
    let directory = open_directory(path)?;
    opened(openat(CWD, path, FLAGS, Mode::empty()), &directory)
}

pub(crate) fn read(opened: &Opened, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    (&opened.file).take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn open_directory(path: &Path) -> Result<OwnedFd, OpenError> {
    let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, directory, flags, Mode::empty()).map_err(io::Error::from)?)
}

fn opened(file: Result<OwnedFd, Errno>, directory: &OwnedFd) -> Result<Opened, OpenError> {
    let file = file.map(File::from).map_err(|errno| match errno {
        Errno::XDEV => OpenError::Outside,
        // A socket, a device without a driver, or a link to `.`.
        Errno::NXIO | Errno::NODEV | Errno::ISDIR => OpenError::NotRegular,
        errno => OpenError::Io(errno.into()),
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(OpenError::NotRegular);
    }
    let directory = File::from(directory.try_clone()?).metadata()?;
    let owners = [0, directory.uid(), rustix::process::geteuid().as_raw()];
    Ok(Opened { file, bytes: metadata.len(), quotable: owners.contains(&metadata.uid()) })
}

/// Resolves the name component by component, as the kernel would; openat2 is not everywhere: kernels before 5.6 lack
/// it, and some seccomp filters deny it. No step leaves the directory.
fn walk(root: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let mut names = vec![name.to_owned()];
    let mut directories: Vec<OwnedFd> = Vec::new();
    let mut links = LINKS_MAX;
    while let Some(name) = names.pop() {
        let here: BorrowedFd<'_> = directories.last().unwrap_or(root).as_fd();
        if name == ".." {
            directories.pop().ok_or(Errno::XDEV)?;
            continue;
        }
        match readlinkat(here, &*name, Vec::new()) {
            Ok(target) => {
                links = links.checked_sub(1).ok_or(Errno::LOOP)?;
                names.extend(components_of(target.into_bytes())?);
            }
            // Not a link: the file, or a directory on the way. A link put there meanwhile fails.
            Err(Errno::INVAL) if names.is_empty() => {
                return openat(here, &*name, FLAGS | OFlags::NOFOLLOW, Mode::empty());
            }
            Err(Errno::INVAL) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                directories.push(openat(here, &*name, flags, Mode::empty())?);
            }
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::ISDIR)
}

/// Returns the components of a link's target in reverse order.
fn components_of(target: Vec<u8>) -> Result<Vec<OsString>, Errno> {
    let target = OsString::from_vec(target);
    let names = Path::new(&target).components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(Ok(name.to_owned())),
        Component::ParentDir => Some(Ok("..".into())),
        Component::CurDir => None,
        Component::RootDir | Component::Prefix(_) => Some(Err(Errno::XDEV)),
    });
    names.collect()
}

/// Opening a named pipe does not wait for a writer, and a terminal does not become the controlling one.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The limit of the kernel.
const LINKS_MAX: u32 = 40;
