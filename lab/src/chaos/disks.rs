//! Gives each node of the chaos test a small disk of its own, which the test can fill and free
//! again. It mounts a file system over the node's folder, so it must run as root.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use souk_testnet::cluster::LOG;

/// Mebibytes of a disk: several times what a node writes in an hour of chaos.
const DISK_MIB: u64 = 512;

/// The file that takes the remaining space.
const BALLAST: &str = "ballast";

/// Bytes in one write.
const STEP_BYTES: usize = 1 << 20;

/// Mounted disks. Dropping this value unmounts them.
#[derive(Debug)]
pub(super) struct Disks {
    folders: Vec<PathBuf>,
}

/// Why a disk could not be mounted or filled.
#[derive(Debug, thiserror::Error)]
pub enum DisksError {
    /// `mount` did not run or failed.
    #[error("no disk was mounted on {folder}, which takes root: {output}")]
    Mount {
        /// The mount point.
        folder: PathBuf,
        /// The output of `mount`.
        output: String,
    },
    /// A file on the disk failed.
    #[error("the disk of {folder}: {cause}")]
    File {
        /// The disk's mount point.
        folder: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

impl Disks {
    /// Mounts a disk over each node's folder in `folder`, and copies the folder's files to it. The
    /// nodes must not run yet.
    pub(super) fn mount_disks(folder: &Path, names: &[String]) -> Result<Disks, DisksError> {
        let mut disks = Disks {
            folders: Vec::new(),
        };
        for name in names {
            let home = folder.join(name);
            let before = read(&home).map_err(|cause| file_error(&home, cause))?;
            let size = format!("size={DISK_MIB}m");
            let ran = Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "souk-chaos"])
                .arg(&home)
                .output();
            let output = match ran {
                Ok(ran) if ran.status.success() => None,
                Ok(ran) => Some(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(output) = output {
                return Err(DisksError::Mount {
                    folder: home,
                    output,
                });
            }
            disks.folders.push(home.clone());
            for (name, bytes, mode) in before {
                let path = home.join(name);
                let written = std::fs::write(&path, bytes)
                    .and_then(|()| std::fs::set_permissions(&path, mode));
                written.map_err(|cause| file_error(&home, cause))?;
            }
        }
        Ok(disks)
    }

    /// Fills a node's disk to the last byte.
    pub(super) fn fill_disk(&self, node: &str) -> Result<(), DisksError> {
        let home = self.node_folder(node);
        let fill = || {
            let mut ballast = File::create(home.join(BALLAST))?;
            let step = vec![0x5a; STEP_BYTES];
            let (mut length, mut filled) = (STEP_BYTES, 0);
            while length > 0 {
                match ballast.write(&step[..length]) {
                    Ok(written) => filled += written,
                    Err(full) if full.kind() == io::ErrorKind::StorageFull => length /= 2,
                    Err(other) => return Err(other),
                }
            }
            tracing::debug!(node, filled, "a disk is full");
            Ok(())
        };
        fill().map_err(|cause| file_error(home, cause))
    }

    /// Frees that space. [`Self::fill_disk`] must have filled the disk before.
    pub(super) fn free_disk(&self, node: &str) -> Result<(), DisksError> {
        let home = self.node_folder(node);
        std::fs::remove_file(home.join(BALLAST)).map_err(|cause| file_error(home, cause))
    }

    fn node_folder(&self, node: &str) -> &Path {
        let home = self.folders.iter().find(|folder| folder.ends_with(node));
        home.expect("every node has a disk")
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for folder in &self.folders {
            // The node's log survives the unmount, for diagnosis.
            let log = std::fs::read(folder.join(LOG));
            // A busy disk goes when its last process ends.
            let _ = Command::new("umount").arg("-l").arg(folder).output();
            let _ = log.and_then(|log| std::fs::write(folder.join(LOG), log));
        }
    }
}

type FileCopy = (std::ffi::OsString, Vec<u8>, std::fs::Permissions);

/// Reads the files of a folder that was just laid out; it must have no subfolders.
fn read(home: &Path) -> io::Result<Vec<FileCopy>> {
    let entries = std::fs::read_dir(home)?;
    let read = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry?;
        let mode = entry.metadata()?.permissions();
        Ok((entry.file_name(), std::fs::read(entry.path())?, mode))
    };
    entries.map(read).collect()
}

fn file_error(folder: &Path, cause: io::Error) -> DisksError {
    DisksError::File {
        folder: folder.to_owned(),
        cause,
    }
}
