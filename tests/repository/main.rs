//! Checks of the files of this repository: sources, prose, scripts, and the published package.

mod calls;
mod commands;
mod documents;
mod files;
mod floors;
mod manifest;
mod mistakes;
mod package;
mod reruns;
mod settings;
mod structure;
mod troubleshooting;
