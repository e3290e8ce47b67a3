use super::Server;

pub(crate) const SLOTS: u16 = 16_384;

/// What a node says of its cluster. Nodes are known by their ports here.
#[derive(Debug)]
pub(super) struct View {
    /// Whose view it is.
    pub(super) port: u16,
    /// Whom it replicates, unless it is a master.
    pub(super) master: Option<u16>,
    /// Who serves each slot; nobody is 0.
    pub(super) owners: Vec<u16>,
    /// The version of its slots: the higher one is right.
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

    /// First and last of each range; slots on the move, in brackets, are still with their owners.
    fn slots(&self) -> impl Iterator<Item = (usize, usize)> {
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
        let mut owners = vec![0; usize::from(SLOTS)];
        for line in &lines {
            for (first, last) in line.slots() {
                owners.get_mut(first..=last)?.fill(line.port()?);
            }
        }
        Some(Self { port: me.port()?, master, owners, epoch: me.words[6].parse().ok()? })
    }

    pub(super) fn serves(&self, slot: u16) -> bool {
        self.master.is_none() && self.owners[usize::from(slot)] == self.port
    }
}

impl Server {
    /// Its view of the cluster that it is a node of, if it can be had.
    pub(super) async fn view(&self) -> Option<View> {
        View::of(&self.attempt::<String>("CLUSTER NODES").await.ok()?)
    }
}
