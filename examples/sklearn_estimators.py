"""Fit a classifier and a regressor to tables with scikit-learn's interface and nothing to choose.

Needs `pip install 'alrao[sklearn]'`. Usage: python examples/sklearn_estimators.py
"""

from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import cross_val_score, train_test_split

from alrao.integrations.sklearn import AlraoClassifier, AlraoRegressor


def main():
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)  # a pandas frame
    y = y.map({0: "malignant", 1: "benign"})  # labels of any type
    X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    classifier = AlraoClassifier(random_state=0).fit(X_train, y_train)
    print(f"Alrao, breast cancer: accuracy {classifier.score(X_test, y_test):.1%}")
    print(dict(zip(classifier.classes_, classifier.predict_proba(X_test[:1])[0].round(3), strict=True)))

    X, y = load_diabetes(return_X_y=True)
    scores = cross_val_score(AlraoRegressor(random_state=0), X, y, cv=3)
    print(f"Alrao, diabetes: R² {scores.mean():.2f}")


if __name__ == "__main__":
    main()
