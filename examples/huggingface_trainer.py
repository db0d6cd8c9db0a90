"""Train a small vision transformer on scikit-learn's digits with the Hugging Face Trainer.

The model is built from a configuration, so nothing is downloaded. Fine-tune a pre-trained one in the same
way, with keep_output=True if its output layer is already trained. Needs
`pip install 'alrao[huggingface,sklearn]'`. Usage: python examples/huggingface_trainer.py [--epochs 20]
"""

import argparse
import tempfile

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import alrao
from alrao.integrations.huggingface import AlraoCallback


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folder", default=tempfile.mkdtemp())
    args = parser.parse_args()
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images / 16 - 0.3, dtype=torch.float32)[:, None]
    data = [{"pixel_values": x, "labels": int(y)} for x, y in zip(images, digits.target, strict=True)]
    train, test = train_test_split(data, test_size=0.25, random_state=0)
    config = ViTConfig(
        image_size=8, patch_size=2, num_channels=1, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, num_labels=10,
    )  # fmt: skip
    model = alrao.Alrao(ViTForImageClassification(config))

    arguments = TrainingArguments(  # before the optimizer: all processes draw the same rates
        args.folder,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=32,
        lr_scheduler_type="constant",  # Auto needs no schedule
        eval_strategy="epoch",
        save_strategy="epoch",  # resume with trainer.train(resume_from_checkpoint=True)
        save_total_limit=1,
        logging_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=train,
        eval_dataset=test,
        optimizers=(alrao.Auto(model), None),  # None: the schedule of the arguments
        callbacks=[AlraoCallback()],
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
    )
    trainer.train()
    print(f"Alrao: accuracy {trainer.evaluate()['eval_accuracy']:.1%}; posterior", model.posterior)

    plain = model.collapse()  # with the averaged weights: an ordinary ViTForImageClassification
    plain.save_pretrained(f"{args.folder}/plain")
    loaded = ViTForImageClassification.from_pretrained(f"{args.folder}/plain")
    difference = (loaded(images[:8]).logits - plain(images[:8]).logits).abs().max().item()
    print(f"largest difference between the collapsed and the loaded model: {difference:.1e}")


if __name__ == "__main__":
    main()
