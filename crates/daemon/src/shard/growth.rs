//! Volumes that have grown.

use surgetank_model::Instant;

use super::Running;

impl Running {
    /// The backing volume may have grown.
    pub(super) fn grow(&mut self) -> Result<u64, String> {
        let size = self.volumes.backing().resize_check().map_err(|failure| failure.to_string())?;
        self.engine.grow(size).map_err(|rejected| rejected.to_string())?;
        self.front.set_size(size);
        Ok(size)
    }

    /// The caching volume has grown. False: it does not show that yet.
    pub(super) fn grow_cache(&mut self, now: Instant, size: u64) -> Result<bool, String> {
        let Some(cache) = self.volumes.cache_mut() else { return Err("there is no caching volume in use".to_owned()) };
        if cache.resize_check().map_err(|failure| failure.to_string())? < size {
            return Ok(false);
        }
        self.engine.grow_cache(now, size).map(|()| true).map_err(|rejected| rejected.to_string())
    }
}
