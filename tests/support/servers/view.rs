use super::Server;

pub(crate) const HASH_SLOTS: u16 = 16_384;

/// The view of a node of its cluster. Nodes are identified by their ports.
#[derive(Debug)]
pub(super) struct View {
    /// The node that has this view.
    pub(super) port: u16,
    /// The node that it replicates, unless it is a master.
    pub(super) master: Option<u16>,
    /// The node that serves each hash slot, or 0.
    pub(super) owners: Vec<u16>,
    /// The version of its hash slots. The higher one is right.
    pub(super) epoch: u64,
}

/// A line of `CLUSTER NODES`.
struct Line<'a> {
    words: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        (words.len() >= 8).then_some(Self { words })
    }

    fn has(&self, flag: &str) -> bool {
        self.words[2].split(',').any(|word| word == flag)
    }

    fn port(&self) -> Option<u16> {
        self.words[1].split('@').next()?.rsplit(':').next()?.parse().ok()
    }

    /// The first and last hash slot of each range. Moving ones, in brackets, still belong to their
    /// owners.
    fn hash_slots(&self) -> impl Iterator<Item = (usize, usize)> {
        self.words[8..].iter().filter_map(|word| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some((first.parse().ok()?, last.parse().ok()?))
        })
    }
}

impl View {
    fn of(text: &str) -> Option<Self> {
        let lines: Vec<_> = text.lines().filter_map(Line::of).collect();
        let me = lines.iter().find(|line| line.has("myself"))?;
        let master = lines.iter().find(|line| line.words[0] == me.words[3]).and_then(Line::port);
        let mut owners = vec![0; usize::from(HASH_SLOTS)];
        for line in &lines {
            for (first, last) in line.hash_slots() {
                owners.get_mut(first..=last)?.fill(line.port()?);
            }
        }
        Some(Self { port: me.port()?, master, owners, epoch: me.words[6].parse().ok()? })
    }

    pub(super) fn serves(&self, hash_slot: u16) -> bool {
        self.master.is_none() && self.owners[usize::from(hash_slot)] == self.port
    }
}

impl Server {
    /// Returns the node's view of its cluster, if available.
    pub(super) async fn view(&self) -> Option<View> {
        View::of(&self.attempt::<String>("CLUSTER NODES").await.ok()?)
    }
}
