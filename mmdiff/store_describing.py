"""Images as the origin of descriptors. `mmdiff.store.Store` adds the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmdiff.formats.errors import one_of
from mmdiff.results import Summary
from mmdiff.store_scoring import StoreScorer


class StoreDescriber(StoreScorer):
    """The part of `Store` that describes images."""

    def describe(
        self,
        source: str | Path,
        *,
        model: str | Path,
        role: str = "background",
        labels_from_folders: bool = False,
        labels: Any = None,
        class_names: Any = None,
        prefix: str = "",
        append: bool = False,
        on_bad: str = "white",
        resize: int | None = None,
        crop: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        batch_size: int = 64,
        device: str = "auto",
        dtype: str | None = None,
        dims: int | None = None,
        normalize: bool = True,
        keep_raw: bool | None = None,
        no_background: bool = False,
        same_ids: bool = False,
    ) -> Summary:
        """Describes images with a network, and adds the rows as `add` does: descriptors/ROLE (docs/images.md).

        The path of an image is its id. An interrupted call continues with the image that it had come to.

        Args:
            source: a folder, a pattern such as "photos/*/*.jpg", a list of paths (.txt, one in a line), or tar shards such as
                "shards/train-{000..099}.tar".
            model: a file that holds an exported program (.pt2), TorchScript (.pt, .ts) or the weights of a ResNet
                (.safetensors, torchvision's names); or a network of a library by its name: "timm:resnet50",
                "open_clip:ViT-B-32/laion2b_s34b_b79k", "transformers:facebook/dinov2-base".
            role: "background", "seeds" or "test", as for `add`.
            labels_from_folders: the first folder in the path of an image, relative to `source`, is its label; an image outside
                of any folder has none.
            labels: a label for each image, in the order of the images, as for `add`.
            class_names: names of class numbers, as for `add`.
            prefix: put in front of every id, where images of several places have the same paths.
            append: add the images to the background instead of replacing it.
            on_bad: images that cannot be read: "white" describes a uniform white image in place of each and records it, "drop"
                leaves them out, "error" refuses them.
            resize: pixels that the shorter side is resized to; None is what the model has recorded, or 256.
            crop: side of the square that is cut from the middle; None is what the model has recorded, or 224.
            mean: mean of red, green and blue between 0 and 1; None is what the model has recorded, or that of ImageNet.
            std: standard deviation of the three; None is what the model has recorded, or that of ImageNet.
            batch_size: images that the network takes at a time.
            device: "auto" (a GPU if torch finds one), "cpu" or "gpu".
            dtype: as for `add`.
            dims: dimensions to reduce to by PCA, as for `add`; None is 256.
            normalize: scale rows to unit length, as for `add`.
            keep_raw: keep the output of the network too, as for `add`.
            no_background: train the PCA on these seeds, as for `add`.
            same_ids: use only the labels of seeds whose ids stand in the collection, as for `add`.

        Returns:
            A dict as of `add`, with `images`, those `described` in this call and `continued` from an interrupted one, the
            `model`, and the `unreadable` images: their `count`, `treatment`, and the reason for each by id.

        >>> import mmdiff, numpy as np, tempfile, torch
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> class Colours(torch.nn.Module):
        ...     def forward(self, images):
        ...         return images.mean((2, 3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "green", "blue"):
        ...         (Path(folder) / "photos" / colour).mkdir(parents=True)
        ...         Image.new("RGB", (30, 20), colour).save(folder + f"/photos/{colour}/1.png")
        ...     shapes = ({0: torch.export.Dim.AUTO},)
        ...     program = torch.export.export(Colours(), (torch.zeros(2, 3, 16, 16),), dynamic_shapes=shapes)
        ...     torch.export.save(program, folder + "/colours.pt2")
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     made = store.describe(folder + "/photos", model=folder + "/colours.pt2", crop=16, labels_from_folders=True)
        ...     made["shape"], made["classes"], made["unreadable"]["count"]
        ([3, 3], 3, 0)
        """
        from mmdiff.describers import path_of
        from mmdiff.describing.stage import Request, describe
        from mmdiff.importing.arrays import given_class_names, given_column
        from mmdiff.importing.stage import Request as ImportRequest

        self._writable(create=True)
        one_of("role", role, ("background", "seeds", "test"))
        one_of("dtype", "float32" if dtype is None else dtype, ("float32", "float16"))
        importing = ImportRequest(
            sources=[],
            role=role,  # type: ignore[arg-type]
            labels=given_column(labels, "labels"),
            class_names=given_class_names(class_names),
            dtype="float32" if dtype is None else dtype,  # type: ignore[arg-type]
            dims=dims,
            normalize=normalize,
            keep_raw=keep_raw,
            no_background=no_background,
            same_ids=same_ids,
            command=self._recorded("describe", locals()),
        )
        request = Request(
            images=path_of("source", source),
            model=path_of("model", model),
            prefix=prefix,
            importing=importing,
            append=append,
            dtype=dtype,
            labels_from_folders=labels_from_folders,
            on_bad=on_bad,  # type: ignore[arg-type]
            resize=resize,
            crop=crop,
            mean=mean,
            std=std,
            batch_size=batch_size,
            device=device,  # type: ignore[arg-type]
        )
        return Summary(describe(self.path, request, self._progress).summary())
